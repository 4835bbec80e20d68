"""Generated code of the contract proto/patchloom/v1/preprocess.proto; `make proto` writes it."""

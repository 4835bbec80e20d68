"""The client: calls the service, converts dialects, hands tensors to engines."""

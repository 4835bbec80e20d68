"""The one way a decoder says that an image is not its own: the caller then asks Pillow."""


class Unsupported(ValueError):
    """These bytes are not decoded here; what Pillow makes of them, pixels or refusal, is the truth.

    `reason` is a short lower-case phrase for logs and metrics, free of payload bytes.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"unsupported: {reason}")
        self.reason = reason

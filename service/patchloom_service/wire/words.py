"""The words that requests and responses share, by their numbers in the contract."""

from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.types import (
    Detail,
    Role,
)

ROLES = {
    pb.ROLE_SYSTEM: Role.SYSTEM,
    pb.ROLE_USER: Role.USER,
    pb.ROLE_ASSISTANT: Role.ASSISTANT,
    pb.ROLE_TOOL: Role.TOOL,
}
DETAILS = {
    pb.IMAGE_DETAIL_UNSPECIFIED: None,
    pb.IMAGE_DETAIL_AUTO: Detail.AUTO,
    pb.IMAGE_DETAIL_LOW: Detail.LOW,
    pb.IMAGE_DETAIL_HIGH: Detail.HIGH,
    pb.IMAGE_DETAIL_ORIGINAL: Detail.ORIGINAL,
}

"""The host's part of decoding for a device: headers parsed, PNG inflated, the rest decoded."""

from patchloom_kernels.jpeg.parse import Jpeg, parse_jpeg
from patchloom_kernels.jpeg.plan import check_jpeg
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import FilteredPng, inflate_png
from patchloom_kernels.unsupported import Unsupported

from patchloom_service.device import Source
from patchloom_service.errors import OutOfMemory
from patchloom_service.media.decode import Colour, decode
from patchloom_service.media.header import ImageFormat, ImageHeader


def read_source(data: bytes, header: ImageHeader, background: Colour) -> Source:
    """The host's part of decoding: all but the pixels where the device makes them. Errors of `decode`."""
    if header.orientation == 1:
        try:
            if header.format is ImageFormat.JPEG:
                return _read_jpeg(data, header)
            if header.format is ImageFormat.PNG and header.bits <= 8 and not header.animated:
                return _read_png(data, header)
        except Unsupported:
            pass
        except MemoryError as error:
            raise OutOfMemory(f"no memory for {header.pixels} pixels") from error
    return decode(data, header, background)


def _read_jpeg(data: bytes, header: ImageHeader) -> Jpeg:
    parsed = parse_jpeg(data)
    check_jpeg(parsed)
    if (parsed.height, parsed.width) != header.stored_size:
        raise Unsupported("jpeg of two sizes")
    return parsed


def _read_png(data: bytes, header: ImageHeader) -> FilteredPng:
    parsed = parse_png(data)
    if (parsed.height, parsed.width) != header.stored_size:
        raise Unsupported("png of two sizes")
    return inflate_png(parsed)

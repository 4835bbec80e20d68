"""Run in its own process: compile the JPEG kernels ahead of time and print their resources as JSON."""

from patchloom_kernels.jpeg import decode, entropy, pixels, plan

from tests.support.compiled import print_resources

LANES = {"LANES": decode.Split().lanes, "SUBSEQUENCE": decode.Split().subsequence}
STREAMS = "words:*i32 bits:*i32 lane_stream:*i32 streams:*i64 images:*i64 slots:*i64 lookup:*i16"
STATES = "starts:*i64 ends:*i64 counts:*i32"
SYNCHRONISE = f"{STREAMS} {STATES} edges_in:*i64 edges_out:*i64 lane_count:i32"
WRITE = (
    f"{STREAMS} natural:*i32 {STATES} count_sums:*i64 coefficients:*i16 differences:*i16 "
    "flags:*i32 lane_count:i32"
)
COUNT = "source:*u8 tile_stream:*i32 streams:*i64 kept:*i32 flags:*i32"
COMPACT = "source:*u8 tile_stream:*i32 streams:*i64 kept:*i32 kept_sums:*i64 words:*u8 bits:*i32"
TRANSFORM = "dct_plane:*i32 planes:*i64 quants:*i64 coefficients:*i16 dc:*i16 samples:*u8"
COLOUR = "pixel_image:*i32 images:*i64 planes:*i64 samples:*u8 out:*u8"
KERNELS = {
    "count_kept": (entropy.count_kept, COUNT, {"TILE": plan.TILE_BYTES}, 4),
    "compact": (entropy.compact, COMPACT, {"TILE": plan.TILE_BYTES}, 4),
    "synchronise first": (entropy.synchronise, SYNCHRONISE, {"FIRST": True, **LANES}, 1),
    "synchronise again": (entropy.synchronise, SYNCHRONISE, {"FIRST": False, **LANES}, 1),
    "write_coefficients": (entropy.write_coefficients, WRITE, LANES, 1),
    "sum_dc": (
        entropy.sum_dc,
        "streams:*i64 images:*i64 planes:*i64 differences:*i16",
        {"CHUNK": decode.DC_CHUNK},
        decode.DC_WARPS,
    ),
    "transform": (pixels.transform, TRANSFORM, {"BLOCKS": plan.DCT_BLOCKS}, 4),
    "colour rgb": (pixels.colour, COLOUR, {"CHANNELS": 3, "PIXELS": plan.PIXELS}, 4),
    "colour rgbx": (pixels.colour, COLOUR, {"CHANNELS": 4, "PIXELS": plan.PIXELS}, 4),
}

if __name__ == "__main__":
    print_resources(KERNELS)

"""Run in its own process: compile the PNG kernels ahead of time and print their resources as JSON."""

from patchloom_kernels.png import decode, kernels, plan

from tests.support.compiled import print_resources

ROWS = "segments:*i64 images:*i64 filtered:*u8 rows:*u8"
EMIT = "pixel_image:*i32 images:*i64 tables:*i32 rows:*u8 out:*u8 flags:*i32"
KERNELS = {
    "sum_across": (kernels.sum_across, ROWS, {"CHUNK": decode.SUM_CHUNK}, 4),
    "sum_down": (kernels.sum_down, ROWS, {"COLUMNS": decode.SUM_COLUMNS}, 4),
    "wavefront short": (kernels.wavefront, ROWS, {"LANES": decode.SHORT}, decode.SHORT // 32),
    "wavefront long": (kernels.wavefront, ROWS, {"LANES": decode.LONG}, decode.LONG // 32),
    "emit rgb": (kernels.emit, EMIT, {"CHANNELS": 3, "PIXELS": plan.PIXELS}, 4),
    "emit rgbx": (kernels.emit, EMIT, {"CHANNELS": 4, "PIXELS": plan.PIXELS}, 4),
}

if __name__ == "__main__":
    print_resources(KERNELS)

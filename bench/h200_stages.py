"""What h200.py runs: checks of every kernel, then times, each a generator of (case, value, unit).

Checks compare with Pillow and with the plain or compiled CPU code, on outputs that were filled with NaN (or a
byte pattern) before. Times are medians of CUDA events, on inputs that rotate and exceed the L2 cache.
"""

import importlib
import io
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import count, cycle, islice
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
from patchloom_kernels import patchify, reference
from patchloom_kernels.image_batch import ImageBatch
from patchloom_kernels.jpeg import cost, entropy, pixels
from patchloom_kernels.jpeg import decode as jpeg
from patchloom_kernels.jpeg.parse import parse_jpeg
from patchloom_kernels.jpeg.plan import check_jpeg
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable
from patchloom_kernels.packing import upload
from patchloom_kernels.png import cost as png_cost
from patchloom_kernels.png import decode as png
from patchloom_kernels.png import kernels as png_kernels
from patchloom_kernels.png.parse import parse_png
from patchloom_kernels.png.plan import FilteredPng, inflate_png
from patchloom_service.config import Config
from patchloom_service.device import DeviceImage, DevicePipeline
from PIL import Image

Found = Iterator[tuple[str, float | str, str]]
Kernels = Sequence[tuple[ModuleType, Sequence[str]]]
WHITE = (255, 255, 255)
TABLE = NormalizeTable.build(
    NormalizeFormula.HF_TORCHVISION, [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
)
SUMMARY = ("copy", "resize", "jpeg", "png", "end to end", "peers", "cpu")
JPEG_KERNELS = (
    (entropy, ("count_kept", "compact", "synchronise", "write_coefficients", "sum_dc")),
    (pixels, ("transform", "colour")),
)
PNG_KERNELS = ((png_kernels, ("sum_across", "sum_down", "wavefront", "emit")),)


def optional(name: str) -> ModuleType | None:
    """A module that may not be installed, or not work here."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):
        return None


def photo(height: int, width: int, seed: int) -> Image.Image:
    """Smooth structure at several scales with noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    picture = np.zeros((height, width, 3), np.float32)
    for scale in (900, 95, 28):
        for channel in range(3):
            a, b, phase = rng.uniform(-1, 1, 3)
            picture[..., channel] += np.sin((a * x + b * y) / scale * 6 + phase * 9) * scale**0.5
    picture = (picture - picture.min()) / (np.ptp(picture) + 1e-6) * 235 + 10
    picture += rng.normal(0, 3, picture.shape).astype(np.float32)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def screenshot(height: int, width: int, seed: int) -> Image.Image:
    """Flat boxes and glyph-like specks."""
    rng = np.random.default_rng(seed)
    picture = np.full((height, width, 3), 245, np.uint8)
    for _ in range(width * height // 40000 + 2):
        y, x = int(rng.integers(0, height)), int(rng.integers(0, width))
        h, w = int(rng.integers(20, 160)), int(rng.integers(60, 420))
        picture[y : y + h, x : x + w] = rng.integers(190, 256, 3)
        text = picture[y + 6 : y + 18, x + 8 : x + 200]
        text[rng.random(text.shape[:2]) < 0.3] = (35, 40, 58)
    return Image.fromarray(picture)


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    """The picture as a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def qwen_piece(height: int, width: int, temporal: int = 2) -> Piece:
    """Resized to whole groups of 2 x 2 patches of 14 pixels, as Qwen2.5-VL has it."""
    target = max(28, round(height / 28) * 28), max(28, round(width / 28) * 28)
    return Piece((height, width), target, target, PatchLayout((14, 14), merge=2, temporal=temporal))


def elements(jobs: Sequence[Job]) -> int:
    """Values of contiguous jobs."""
    return sum(job.piece.rows * job.piece.layout.row_size() for job in jobs)


def contiguous(pieces: Sequence[Piece]) -> list[Job]:
    """The pieces one behind the other, each of its own source."""
    jobs, start = [], 0
    for index, piece in enumerate(pieces):
        jobs.append(Job.contiguous(index, piece, start))
        start += piece.rows * piece.layout.row_size()
    return jobs


def expected_levels(sources: Sequence[Any], jobs: Sequence[Job], parity: Parity) -> Any:
    """By the compiled CPU code, without numba by the plain one: levels in the order of the patches."""
    compiled = optional("patchloom_kernels.cpu.resize")
    run = compiled.resize_patchify if compiled else reference.resize_patchify
    out = np.empty(elements(jobs), np.uint8)
    run(sources, jobs, None, out, Dtype.UINT8, parity)
    return out


def expected_patches(levels: Any, layout: PatchLayout, dtype: Dtype) -> Any:
    """Values of levels in the order of the patches, whose channels are outermost."""
    if dtype is Dtype.UINT8:
        return levels
    patches = levels.reshape(-1, 3, layout.row_size() // 3)
    values = [row[patches[:, channel]] for channel, row in enumerate(TABLE.to(dtype))]
    return np.stack(values, 1).reshape(-1)


class Timed:
    """Stands for a kernel and notes events around each launch."""

    def __init__(self, bench: "Bench", kernel: Any) -> None:
        self.bench, self.kernel, self.spans = bench, kernel, []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            begin = self.bench.mark()
            self.kernel[grid](*args, **kwargs)
            self.spans.append((begin, self.bench.mark()))

        return launch


class Bench:
    """The pictures, the device and the stages."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        if not tiny and not torch.cuda.is_available():
            raise SystemExit("torch sees no CUDA device; --tiny runs in the interpreter")
        self.device = torch.device("cpu" if tiny else "cuda:0")
        name = "interpreter" if tiny else torch.cuda.get_device_name(0)
        self.machine = f"{name}, torch {torch.__version__}, triton {triton.__version__}"
        self.size = (20, 28) if tiny else (1080, 1920)
        self.repeats = 1 if tiny else 20
        self.batches = (1,) if tiny else (1, 8, 64, 256)
        self.copy_bandwidth = 0.0  # bytes read and written per second
        self.split = jpeg.INTERPRETED if tiny else jpeg.Split()
        self.threads = ThreadPoolExecutor(os.cpu_count())
        settings = {"batch_wait": 0.01, "pixel_cache_bytes": 0}
        self.pipeline = DevicePipeline(Config(**settings), interpreter=tiny)

    def stages(self) -> Iterator[tuple[Any, ...]]:
        """(name, generator, seconds, stages that must have passed)."""
        yield "exact resize", self.exact_resize, 90
        yield "exact jpeg", self.exact_jpeg, 60
        yield "exact png", self.exact_png, 60
        yield "exact pipeline", self.exact_pipeline, 60
        yield "copy", self.copy, 20
        yield "resize", self.resize, 60, ("exact resize", "copy")
        yield "jpeg", self.jpeg_stages, 40, ("exact jpeg", "copy")
        yield "png", self.png_stages, 40, ("exact png", "copy")
        yield "end to end", self.end_to_end, 120, ("exact pipeline",)
        yield "cpu", self.cpu, 40
        yield "peers", self.peers, 60

    # clocks

    def wait(self) -> None:
        """Until the device is idle."""
        if not self.tiny:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """A moment of the current stream; `between` measures."""
        if self.tiny:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to another."""
        return end - begin if self.tiny else begin.elapsed_time(end) / 1000

    def median(self, *runs: Callable[[], object]) -> float:
        """Median seconds on the device, over runs that take turns."""
        for run in () if self.tiny else runs:
            run()
        self.wait()
        spans = []
        for run in islice(cycle(runs), max(self.repeats, len(runs))):
            begin = self.mark()
            run()
            spans.append((begin, self.mark()))
        self.wait()
        return statistics.median(self.between(*span) for span in spans)

    def by_kernel(self, modules: Kernels, run: Callable[[], object]) -> Found:
        """Seconds of each kernel in `run`, all its launches together; the median of some runs."""
        if not self.tiny:
            run()
        totals: dict[str, list[float]] = {}
        for _ in range(max(1, self.repeats // 4)):
            proxies = [(m, name, Timed(self, getattr(m, name))) for m, names in modules for name in names]
            for module, name, proxy in proxies:
                setattr(module, name, proxy)
            try:
                run()
                self.wait()
            finally:
                for module, name, proxy in proxies:
                    setattr(module, name, proxy.kernel)
            for _, name, proxy in proxies:
                totals.setdefault(name, []).append(sum(self.between(*span) for span in proxy.spans))
        for name, seconds in totals.items():
            yield name, statistics.median(seconds) * 1e6, "us"

    # pictures

    def jpegs(self, number: int, **options: Any) -> list[bytes]:
        """Distinct photos."""
        return [encode(photo(*self.size, seed), "JPEG", **options) for seed in range(number)]

    @cached_property
    def kinds(self) -> dict[str, list[bytes]]:
        """The end-to-end workloads, a few distinct files each."""
        number = 1 if self.tiny else 4
        return {
            "jpeg q75 420": self.jpegs(number, quality=75, subsampling=2),
            "jpeg q90 444": self.jpegs(number, quality=90, subsampling=0),
            "png screenshot": [encode(screenshot(*self.size, seed), "PNG") for seed in range(number)],
        }

    # checks

    def exact_resize(self) -> Found:
        """All dtypes and parities on ragged batches; outputs filled with NaN."""
        sizes = [(31, 47), (60, 40)] if self.tiny else [(1080, 1920), (480, 640), (3024, 4032), (2400, 1080)]
        rng = np.random.default_rng(0)
        sources = [rng.integers(0, 256, (*size, 3 + i % 2), np.uint8) for i, size in enumerate(sizes)]
        jobs = contiguous([qwen_piece(*size) for size in sizes])
        for parity in Parity:
            levels = expected_levels(sources, jobs, parity)
            for dtype in Dtype if parity is Parity.ATEN_U8 else (Dtype.BFLOAT16,):
                batch = ImageBatch.from_arrays(sources, jobs, parity, self.device)
                out = torch.empty(elements(jobs), dtype=getattr(torch, dtype), device=self.device)
                out.view(torch.uint8).fill_(0xFF)  # NaN in every floating-point type
                patchify.resize_patchify_batch(batch, None if dtype is Dtype.UINT8 else TABLE, out, dtype)
                bits = out.view(torch.uint8).cpu().numpy().view(dtype.numpy)
                _same(bits, expected_patches(levels, jobs[0].piece.layout, dtype))
                yield f"{dtype} {parity}", "equal", f"{len(sizes)} images"

    def exact_jpeg(self) -> Found:
        """All samplings against Pillow, one byte pattern and then another below."""
        quality = {"420 q75": (2, 75), "420 q90": (2, 90), "422 q85": (1, 85), "444 q90": (0, 90)}
        files = {
            name: encode(photo(*self.size, i), "JPEG", subsampling=sampling, quality=q)
            for i, (name, (sampling, q)) in enumerate(quality.items())
        }
        files["gray q85"] = encode(photo(*self.size, 9).convert("L"), "JPEG", quality=85)
        files["restarts"] = encode(photo(*self.size, 8), "JPEG", quality=85, restart_marker_rows=1)
        files["optimised, odd"] = encode(photo(self.size[0] - 3, self.size[1] - 5, 7), "JPEG", optimize=True)
        parsed = [parse_jpeg(data) for data in files.values()]
        for one in parsed:
            check_jpeg(one)
        self._exact_decoder(files, [(p.height, p.width) for p in parsed], jpeg, parsed, 3, self.split)
        yield ", ".join(files), "equal", f"{len(files)} images"

    def exact_png(self) -> Found:
        """Photographs and screenshots of several modes against Pillow."""
        files = {
            "screenshot": encode(screenshot(*self.size, 1), "PNG"),
            "photo": encode(photo(*self.size, 2), "PNG"),
            "gray": encode(photo(*self.size, 3).convert("L"), "PNG"),
            "palette": encode(screenshot(*self.size, 4).quantize(200), "PNG"),
        }
        alpha = np.dstack([np.asarray(photo(*self.size, 5)), np.asarray(photo(*self.size, 6))[..., :1]])
        files["alpha"] = encode(Image.fromarray(alpha), "PNG")
        inflated = [inflate_png(parse_png(data)) for data in files.values()]
        sizes = [(one.png.height, one.png.width) for one in inflated]
        self._exact_decoder(files, sizes, png, inflated, WHITE)
        yield ", ".join(files), "equal", f"{len(files)} images"

    def _exact_decoder(
        self, files: dict[str, bytes], sizes: Sequence[Any], decoder: Any, sources: Any, *settings: Any
    ) -> None:
        lengths = [height * width * 3 for height, width in sizes]
        offsets = [64 + sum(lengths[:i]) + 64 * i for i in range(len(lengths))]
        size = offsets[-1] + lengths[-1] + 64
        for pattern in (0xA5,) if self.tiny else (0xA5, 0x5A):
            out = torch.full((size,), pattern, dtype=torch.uint8, device=self.device)
            prepared = decoder.prepare(sources, offsets, size, *settings)
            flags = decoder.launch(prepared, upload(prepared.arrays, self.device), out)
            assert not any(decoder.explain(flags)), decoder.explain(flags)
            found = out.cpu().numpy()
            for data, offset, length in zip(files.values(), offsets, lengths, strict=True):
                _same(found[offset : offset + length], pillow(data).reshape(-1))
                found[offset : offset + length] = pattern
            assert (found == pattern).all(), "bytes between the images were written"

    def exact_pipeline(self) -> Found:
        """Requests through the batch former, streams and pinned memory, many times over."""
        files = [data for own in self.kinds.values() for data in own[:1]]
        images = [self.image(read(data), data) for data in files]
        truth = []
        for data, image in zip(files, images, strict=True):
            levels = expected_levels([pillow(data)], contiguous(image.pieces), Parity.ATEN_U8)
            truth.append(expected_patches(levels, image.pieces[0].layout, Dtype.BFLOAT16))
        rounds = 1 if self.tiny else 20
        sent = [[replace(i, identity=name(), result=type(i.result)()) for i in images] for _ in range(rounds)]
        for batch in sent:
            self.pipeline.submit(batch)
        for batch in sent:
            for image, expected in zip(batch, truth, strict=True):
                _same(image.result.result(timeout=60).patches[0], expected)
        gauges = self.pipeline.gauges()
        assert not gauges["patchloom_device_flagged_total"], gauges
        assert not gauges["patchloom_device_on_cpu_total"], gauges
        yield "concurrent requests", "equal", f"{rounds * len(files)} images"

    # times

    def copy(self) -> Found:
        """What the memory gives a copy, read plus written, and the bus both ways."""
        size = 1 << 16 if self.tiny else 1 << 30
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.copy_bandwidth = 2 * size / self.median(lambda: target.copy_(source))
        yield "device to device", self.copy_bandwidth / 1e9, "GB/s"
        host = torch.empty(size // 4, dtype=torch.uint8, pin_memory=not self.tiny)
        part = source[: size // 4]
        yield "host to device", size / 4e9 / self.median(lambda: part.copy_(host, non_blocking=True)), "GB/s"
        yield "device to host", size / 4e9 / self.median(lambda: host.copy_(part, non_blocking=True)), "GB/s"

    def resize(self) -> Found:
        """Fraction of the copy bandwidth on floor bytes, source once and patches once."""
        sizes = [(1080, 1920), (2160, 3840), (480, 640)]
        number = 1 if self.tiny else 32
        for size in [self.size] if self.tiny else sizes:
            for dtype in (Dtype.BFLOAT16,) if self.tiny else (Dtype.BFLOAT16, Dtype.FLOAT32, Dtype.UINT8):
                piece = qwen_piece(*size, temporal=1 if dtype is Dtype.UINT8 else 2)
                jobs = contiguous([piece] * number)
                runs = [self._resize_run(size, jobs, dtype, seed) for seed in range(1 if self.tiny else 2)]
                seconds = self.median(*runs)
                floor = patchify.traffic(jobs, [3] * number, dtype, Parity.ATEN_U8).floor_bytes
                case = f"{number} x {size[0]}x{size[1]} {dtype}"
                yield f"{case}, floor {floor / 1e6:.0f} MB", seconds * 1e6, "us"
                yield f"{case}, of copy bandwidth", floor / seconds / self.copy_bandwidth * 100, "%"

    def _resize_run(self, size: Any, jobs: Sequence[Job], dtype: Dtype, seed: int) -> Callable[[], None]:
        rng = np.random.default_rng(seed)
        sources = [rng.integers(0, 256, (*size, 3), np.uint8)] * len(jobs)
        batch = ImageBatch.from_arrays(sources, jobs, Parity.ATEN_U8, self.device)
        table = None if dtype is Dtype.UINT8 else TABLE
        entries = torch.from_numpy(patchify.entries_of(table, dtype)).to(self.device)
        out = torch.empty(elements(jobs), dtype=getattr(torch, dtype), device=self.device)
        return lambda: patchify.launch_patches(batch, entries, out)

    def jpeg_stages(self) -> Found:
        """Each kernel on a batch of photos, and all of them against the bytes they must move."""
        number = 1 if self.tiny else 32
        kinds = {"q75 420": (75, 2), "q90 444": (90, 0)}
        for case, options in islice(kinds.items(), 1 if self.tiny else None):
            files = self.jpegs(1 if self.tiny else 4, quality=options[0], subsampling=options[1])
            parsed = [parse_jpeg(data) for data in islice(cycle(files), number)]
            yield from self._decoder_stages(
                f"{number} x {case}", jpeg, JPEG_KERNELS, parsed, cost.floor_bytes(parsed), 3, self.split
            )

    def png_stages(self) -> Found:
        """The same for filters of screenshots and of photographs."""
        number = 1 if self.tiny else 32
        for case, draw in {"screenshot": screenshot, "photo": photo}.items():
            files = [encode(draw(*self.size, seed), "PNG") for seed in range(1 if self.tiny else 2)]
            inflated = [inflate_png(parse_png(data)) for data in files]
            batch = list(islice(cycle(inflated), number))
            floor = png_cost.floor_bytes(batch)
            yield from self._decoder_stages(f"{number} x {case}", png, PNG_KERNELS, batch, floor, WHITE)

    def _decoder_stages(
        self, case: str, decoder: Any, kernels: Any, sources: Sequence[Any], floor: int, *settings: Any
    ) -> Found:
        length = -(-self.size[0] * self.size[1] * 3 // 16) * 16
        offsets = [i * length for i in range(len(sources))]
        out = torch.empty(length * len(sources), dtype=torch.uint8, device=self.device)
        prepared = decoder.prepare(sources, offsets, out.numel(), *settings)
        arrays = upload(prepared.arrays, self.device)

        def run() -> None:
            decoder.launch(prepared, arrays, out)

        for kernel, value, unit in self.by_kernel(kernels, run):
            yield f"{case} {kernel}", value, unit
        seconds = self.median(run)
        yield f"{case} all", seconds * 1e6, "us"
        yield f"{case} all, a second", len(sources) / seconds, "images/s"
        yield f"{case} all, floor bytes of copy bandwidth", floor / seconds / self.copy_bandwidth * 100, "%"

    def end_to_end(self) -> Found:
        """Encoded bytes on the host to bfloat16 patches on the device, the host's work included."""
        for case, files in self.kinds.items():
            for number in self.batches:
                batch = list(islice(cycle(files), number))
                if not self.tiny:
                    self._to_device(batch)
                spans = [self._to_device(batch) for _ in range(1 if self.tiny else 3)]
                host, whole = (statistics.median(part) for part in zip(*spans, strict=True))
                yield f"{case} batch {number}", number / whole, "images/s"
                yield f"{case} batch {number}, host parses", host * 1000, "ms"
                yield f"{case} batch {number}, all", whole * 1000, "ms"

    def _to_device(self, files: Sequence[bytes]) -> tuple[float, float]:
        """Seconds of the host's part of decoding, and of all until the patches are there."""
        begin = time.perf_counter()
        sources = list(self.threads.map(read, files))
        parsed = time.perf_counter()
        images = [self.image(source, data) for source, data in zip(sources, files, strict=True)]
        enqueued = self.pipeline.enqueue(images)
        self.wait()
        assert enqueued.patches
        return parsed - begin, time.perf_counter() - begin

    def image(self, source: Any, data: bytes) -> DeviceImage:
        """A request's image."""
        return DeviceImage(
            identity=name(),
            source=source,
            read_again=lambda: pillow(data),
            background=WHITE,
            pieces=(qwen_piece(*self.size),),
            table=TABLE,
            dtype=Dtype.BFLOAT16,
            parity=Parity.ATEN_U8,
        )

    def cpu(self) -> Found:
        """The CPU path on all cores, where its compiled code is there."""
        compiled = optional("patchloom_kernels.cpu.resize")
        decoders = optional("patchloom_service.media.decode")
        if compiled is None or decoders is None:
            yield "not run: numba is not installed", "", "-"
            return
        decoders.warm_up()
        compiled.warm([Dtype.BFLOAT16])
        from patchloom_service.media.probe import probe

        def whole(data: bytes) -> None:
            source = decoders.decode(data, probe(data, 1 << 30))
            jobs = contiguous([qwen_piece(*self.size)])
            out = np.empty(elements(jobs), np.uint16)
            compiled.resize_patchify([source], jobs, TABLE, out, Dtype.BFLOAT16, Parity.ATEN_U8)

        for case, files in self.kinds.items():
            batch = list(islice(cycle(files), 1 if self.tiny else 64))
            whole(batch[0])
            begin = time.perf_counter()
            list(self.threads.map(whole, batch))
            seconds = time.perf_counter() - begin
            yield f"{case}, {os.cpu_count()} cores", len(batch) / seconds, "images/s"

    def peers(self) -> Found:
        """torchvision's CUDA decode and resize, with transformers' processor on the device behind it."""
        vision, transformers = optional("torchvision"), optional("transformers")
        if self.tiny or vision is None:
            yield "not run: no torchvision on a device", "", "-"
            return
        from torchvision.io import ImageReadMode, decode_jpeg
        from torchvision.transforms.v2.functional import InterpolationMode, resize

        target = list(qwen_piece(*self.size).target)
        processor = None if transformers is None else _qwen_processor(transformers)

        def decoded(batch: Any) -> Any:
            return decode_jpeg(batch, mode=ImageReadMode.RGB, device="cuda")

        def resized(batch: Any) -> Any:
            return resize(torch.stack(decoded(batch)), target, InterpolationMode.BICUBIC, antialias=True)

        def processed(batch: Any) -> Any:
            return processor(images=decoded(batch), device="cuda", return_tensors="pt")

        runs = {"decode": decoded, "decode + resize": resized}
        if processor is not None:
            runs["decode + transformers"] = processed
        for case, files in self.kinds.items():
            if case.startswith("png"):
                continue
            for number in self.batches:
                batch = [
                    torch.frombuffer(bytearray(f), dtype=torch.uint8) for f in islice(cycle(files), number)
                ]
                for what, run in runs.items():
                    seconds = self._wall(partial(run, batch))
                    yield f"torchvision {what}, {case} batch {number}", number / seconds, "images/s"

    def _wall(self, run: Callable[[], object]) -> float:
        """Median seconds of three runs, waiting included."""
        run()
        self.wait()
        spans = []
        for _ in range(3):
            begin = time.perf_counter()
            run()
            self.wait()
            spans.append(time.perf_counter() - begin)
        return statistics.median(spans)


def _qwen_processor(transformers: ModuleType) -> Any:
    """Qwen2-VL's processor of the torchvision backend, under the name that this version has."""
    limits = {"min_pixels": 3136, "max_pixels": 12845056}
    for name_ in ("Qwen2VLImageProcessorFast", "Qwen2VLImageProcessor"):
        if hasattr(transformers, name_):
            return getattr(transformers, name_)(**limits)
    return None


def read(data: bytes) -> Any:
    """The host's part of decoding."""
    if data.startswith(b"\xff\xd8"):
        parsed = parse_jpeg(data)
        check_jpeg(parsed)
        return parsed
    inflated: FilteredPng = inflate_png(parse_png(data))
    return inflated


def pillow(data: bytes) -> Any:
    """What Pillow makes of a file, on white."""
    image = Image.open(io.BytesIO(data))
    if image.mode == "RGBA":
        ground = Image.new("RGBA", image.size, (*WHITE, 255))
        image = Image.alpha_composite(ground, image)
    return np.asarray(image.convert("RGB"))


_names = count()


def name() -> tuple[str, str]:
    """An identity of its own, so that equal files are decoded each for itself."""
    return "bench", str(next(_names))


def _same(found: Any, expected: Any) -> None:
    if found.shape != expected.shape:
        raise AssertionError(f"shape {found.shape}, expected {expected.shape}")
    wrong = np.flatnonzero(found.view(f"u{found.itemsize}") != expected.view(f"u{expected.itemsize}"))
    if len(wrong):
        raise AssertionError(f"{len(wrong)} of {found.size} values differ, the first at {wrong[0]}")

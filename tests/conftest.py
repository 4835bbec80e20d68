"""The official chat templates: where they are, and which of them a run had to do without."""

from collections.abc import Callable
from pathlib import Path

import pytest

OFFICIAL = (
    "gemma3",
    "gemma4",
    "glm_5_3_flash",
    "glm_5_3_flash_earlier",
    "internvl_hf",
    "llava_next",
    "minicpmv4_5_fallback",
    "qwen2_5_text",
    "qwen2_5_vl",
    "qwen3_5",
    "qwen3_6",
    "qwen3_vl",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--templates",
        metavar="DIR",
        help="folder with the official chat templates (default: ../shared/data/templates)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves tests that need a card out, unless they are asked for by name: then they fail without one."""
    if "cuda" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("cuda")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def template_folder(config: pytest.Config) -> Path:
    given = config.getoption("--templates")
    return Path(given) if given else config.rootpath.parent / "shared" / "data" / "templates"


def pytest_report_header(config: pytest.Config) -> str:
    folder = template_folder(config)
    missing = [name for name in OFFICIAL if not (folder / f"{name}.jinja").is_file()]
    return f"official templates: {folder}; missing: {', '.join(missing) or 'none'}"


@pytest.fixture(scope="session")
def official(pytestconfig: pytest.Config) -> Callable[[str], str]:
    """Reads an official template by name; the test of a missing one is skipped, and the header names it."""

    def read(name: str) -> str:
        path = template_folder(pytestconfig) / f"{name}.jinja"
        if not path.is_file():
            pytest.skip(f"official template {name} is missing")
        return path.read_text(encoding="utf-8")

    return read

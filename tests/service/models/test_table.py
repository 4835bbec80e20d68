import json
from pathlib import Path

import pytest
from patchloom_service.models import FAMILIES, reference
from patchloom_service.models.table import as_markdown, models_table

from tests.oracles import families as oracles
from tests.support.families import GOLDEN, build, golden

ROOT = Path(__file__).resolve().parents[3]
ROWS = models_table()
RECORDED = [(row, name) for row in ROWS for name in row.goldens]


def test_the_page_is_what_the_command_prints():
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == as_markdown(ROWS)


def test_every_family_file_has_a_row():
    listed = {name for row in ROWS for name in row.architectures}
    for family in FAMILIES:
        if family is not reference:
            assert any(family.match({"architectures": [name], **PIXTRAL}) for name in listed), family


def test_every_architecture_of_the_table_is_taken_by_its_family():
    names = [name for row in ROWS for name in row.architectures]
    assert len(names) == len(set(names))
    for name in names:
        takers = [f for f in FAMILIES if f is not reference and f.match({"architectures": [name], **PIXTRAL})]
        assert len(takers) == 1, name


def test_every_recorded_processor_belongs_to_a_row():
    assert sorted(name for _, name in RECORDED) == sorted(oracles.FAMILIES)


@pytest.mark.parametrize(("row", "name"), RECORDED, ids=[name for _, name in RECORDED])
def test_a_row_names_its_oracle_and_its_tensors(row, name):
    oracle = json.loads((GOLDEN / f"{name}.json").read_text())["oracle"]
    assert oracle.split()[0] in row.oracle
    recorded = [*golden(name), *(case for other in row.goldens for case in of_audio(other))]
    assert set(row.tensors) == {key for case in recorded for key in case["tensors"]}


def of_audio(name: str) -> list[dict]:
    """The recorded cases of audio, none for a family without."""
    path = GOLDEN.parent / "golden_audio" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []


@pytest.mark.parametrize(("row", "name"), RECORDED, ids=[name for _, name in RECORDED])
def test_a_row_says_whether_there_is_a_pil_class(row, name):
    assert ("there is no PIL backend" in row.parity) == ("pil" not in build(name).oracle.lower())


PIXTRAL = {"vision_config": {"model_type": "pixtral"}}

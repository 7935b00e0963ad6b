"""The table in the documentation is of these models, and of all of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tiny_models import CASES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from heedful.export.ctranslate2_writer import PLAIN
from heedful.export.gguf_writer import ARCHITECTURES
from heedful.pretrained.model_types import MODEL_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")


def test_the_table_has_every_class_and_no_figure_beyond_what_is_asked() -> None:
    rows = re.findall(r"^\| (\S+) \| (\w+) \| (\d+) \| (\S+) \| (\S+) \|$", PAGE, re.M)
    shown = {(model_type, name): int(number) for model_type, name, number, _, _ in rows}
    assert shown == Counter((case.split()[0], made.__name__) for case, (made, _) in CASES.items())
    assert all(float(exact) <= 1e-10 and float(single) <= 1e-5 for *_, exact, single in rows)


def test_every_class_that_opens_is_tried() -> None:
    """But classes of pre-training, which are tested where they read as a masked or an ordinary language model."""
    known = {case.name for model_type in MODEL_TYPES.values() for case in model_type.architectures} - {
        *("BertForPreTraining", "AlbertForPreTraining", "OpenAIGPTDoubleHeadsModel")
    }
    untried = known - {made.__name__ for made, _ in CASES.values()}
    assert not untried


def test_three_configurations_and_more_of_each_family() -> None:
    tried = Counter(case.split()[0] for case in CASES)
    assert {name for name in MODEL_TYPES if tried[name] >= 3} == set(MODEL_TYPES)


def test_the_number_of_configurations_in_the_text() -> None:
    page = (Path(__file__).parents[2] / "docs" / "inside.md").read_text(encoding="utf-8")
    assert f"for all {len(CASES)} configurations" in page


def rows_of(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without its head."""
    section = PAGE.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return [re.split(r" *\| *", line.strip("|")) for line in section.splitlines() if line.startswith("| `")]


def test_every_model_type_has_its_marks() -> None:
    rows = [(name, row) for row in rows_of("What works with each") for name in re.findall(r"`(\S+?)`", row[0])]
    assert Counter(name for name, _ in rows) == Counter(MODEL_TYPES.keys())
    exports = {name: row[4] for name, row in rows}
    assert {name for name, formats in exports.items() if "GGUF" in formats} == set(ARCHITECTURES)
    assert set(PLAIN) <= {name for name, formats in exports.items() if "CTranslate2" in formats}
    assert all("ONNX" in formats for formats in exports.values())


def test_model_types_that_do_not_open_are_those_of_transformers() -> None:
    names = [name for row in rows_of("Model types that do not open") for name in re.findall(r"`(\S+?)`", row[0])]
    assert len(names) > 90
    assert len(names) == len(set(names))
    assert set(names) <= set(CONFIG_MAPPING_NAMES) - set(MODEL_TYPES)

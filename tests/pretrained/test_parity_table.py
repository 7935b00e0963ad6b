"""The table in the documentation is of these models, and of all of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tiny_models import CASES

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

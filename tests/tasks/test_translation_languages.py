"""Languages of multilingual translators: the tokens and the texts that ``transformers`` makes, in two directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import heedful
from heedful import cli
from heedful.errors import HeedfulError
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer

pytest.importorskip("transformers")
import transformers as hf

from translators import CASES, TEXTS, published

IN_EACH = pytest.mark.parametrize("case", CASES)


def theirs(folder: Path, case: str, source: str, target: str, **options: Any) -> list[tuple[list[int], str]]:
    """Ids and texts of transformers: the language begins the target, or is forced to."""
    tokenizer, model = type(CASES[case][0]()).from_pretrained(folder), CASES[case][1].from_pretrained(folder).eval()
    tokenizer.src_lang = source
    first = tokenizer.convert_tokens_to_ids(target)
    way = {"decoder_start_token_id": first} if CASES[case][4] else {"forced_bos_token_id": first}
    rows = []
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        ids = model.generate(**given, **way, max_new_tokens=9, **options)[0].tolist()
        rows.append((given["input_ids"][0].tolist(), tokenizer.decode(ids, skip_special_tokens=True)))
    return rows


@IN_EACH
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_two_directions_are_those_of_transformers(case: str, options: dict[str, Any], tmp_path: Path) -> None:
    folder = published(case, tmp_path / "model")
    translate, said = heedful.pipeline("translation", folder), []
    for source, target in CASES[case][3]:
        expected = theirs(folder, case, source, target, **options)
        task = translate.task.for_options({"source_language": source, "target_language": target})
        assert task.encode_sources(TEXTS) == [ids for ids, _ in expected]
        found = translate(TEXTS, source_language=source, target_language=target, **options)
        assert [one["output"] for one in found] == [text for _, text in expected]
        said.append([one["output"] for one in found])
    assert said[0] != said[1] or options  # beams may end alike


@IN_EACH
def test_the_first_token_is_the_target_language(case: str, tmp_path: Path) -> None:
    folder = published(case, tmp_path / "model")
    pipe = heedful.pipeline("translation", folder)
    firsts, begins = [], CASES[case][4]
    for source, target in CASES[case][3]:
        code = pipe.task.source.languages[target]
        task = pipe.task.for_options({"source_language": source, "target_language": target})
        batch = task.tensors([(task.encode_sources(["the man"])[0], task.encode_targets(["le homme"])[0])])
        assert (batch["target"] if begins else batch["labels"])[0, 0] == code
        assert batch["labels"][0, -1] == pipe.task.source.end
        option = {"decoder_start_token_id": code} if begins else {"forced_bos_token_id": code}
        firsts.append(pipe.model.generate(batch["source"], **option, max_new_tokens=3)[0, 0 if begins else 1].item())
        assert firsts[-1] == code
    assert firsts[0] != firsts[1]


@IN_EACH
def test_a_trained_folder_has_its_languages(case: str, tmp_path: Path) -> None:
    folder = published(case, tmp_path / "model")
    source, target = CASES[case][3][1]
    rows = [{"source": text, "target": "le homme est ici"} for text in TEXTS] * 4
    run = heedful.train(
        "translation",
        rows,
        valid=rows,
        model=folder,
        out=tmp_path / "run",
        max_steps=2,
        quiet=True,
        data_settings={"source_language": source, "target_language": target},
    )
    task = Translation.load(run.folder)
    assert (task.source_language, task.target_language) == (source, target)
    assert [one["output"] for one in run.pipeline(TEXTS)] == [
        one["output"] for one in run.pipeline(TEXTS, source_language=source, target_language=target)
    ]
    tokenizer = hf.AutoTokenizer.from_pretrained(run.folder)
    assert tokenizer(TEXTS)["input_ids"] == task.encode_sources(TEXTS)
    model = CASES[case][1].from_pretrained(run.folder).eval()
    given = tokenizer(TEXTS[0], return_tensors="pt")
    ids = model.generate(**given, max_new_tokens=9)[0].tolist()
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert run.pipeline(TEXTS[0], max_new_tokens=9)["output"] == text


def test_the_command_line_and_unknown_languages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = published("mbart-50", tmp_path / "model")
    command = ["predict", str(folder), "the man is here", "--source-language", "en_XX", "--json"]
    assert cli.main([*command, "--target-language", "fr_XX"]) == 0
    said = json.loads(capsys.readouterr().out)["output"]
    assert said == theirs(folder, "mbart-50", "en_XX", "fr_XX")[0][1]
    assert cli.main([*command, "--target-language", "fr"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("heedful: ")
    assert "the model has no language 'fr' (--target-language); known: af_ZA, ar_AR, az_AZ" in error
    assert cli.main(command) == 0
    assert "have no target language; give target_language, known: af_ZA" in caplog.text
    folder_25 = published("mbart-25", tmp_path / "other")
    assert cli.main(["predict", str(folder_25), "the man"]) == 2
    assert "the model translates into several languages; give --target-language, known: " in capsys.readouterr().err
    evaluate = ["evaluate", str(folder), "--data", str(tmp_path / "rows.jsonl"), "--json"]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"source": "the man", "target": "le homme"}) + "\n")
    losses = []
    for target in ("fr_XX", "de_DE"):
        assert cli.main([*evaluate, "--source-language", "en_XX", "--target-language", target]) == 0
        losses.append(json.loads(capsys.readouterr().out)["metrics"]["loss"])
    assert losses[0] != losses[1]


def test_a_model_without_languages_says_so(tmp_path: Path) -> None:
    run = heedful.train(
        "translation",
        [{"source": text, "target": text} for text in TEXTS] * 8,
        out=tmp_path / "run",
        max_steps=1,
        quiet=True,
        model_settings={"dim": 16, "depth": 1, "heads": 2},
    )
    with pytest.raises(HeedfulError, match=r"no language 'fr_XX' \(target_language\); it has no language tokens"):
        run.pipeline("the man", target_language="fr_XX")
    with pytest.raises(HeedfulError, match=r"src_lang has no effect for translation; did you mean 'source_language'"):
        run.pipeline("the man", src_lang="fr_XX")


def test_languages_of_other_tokenizers_are_none(tmp_path: Path) -> None:
    assert Tokenizer.train(TEXTS, 300).languages == {}
    published("nllb legacy", tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.source_language == "eng_Latn"
    assert tokenizer.template_in("fra_Latn").after == (2, tokenizer.languages["fra_Latn"])
    assert tokenizer.template_in(None).after == (2,)

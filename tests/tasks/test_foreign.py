"""Published folders, which have no ``heedful.json``, used and fine-tuned: tiny random models by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import heedful
from heedful.cli import main
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.pretrained import load
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer
from tolerances import approx

transformers = pytest.importorskip("transformers")

ENGLISH = ["the red bird sang", "a small house", "the cat sat on the small mat", "birds and cats", "a red house sang"]
FRENCH = ["l'oiseau rouge chantait", "une petite maison", "le chat sur le petit tapis", "oiseaux et chats", "rouge"]
ENCODER_DECODERS = ["t5", "t5-untied", "bart", "marian"]
DECODERS = ["gpt2", "llama"]


@cache
def tokenizer(template: str) -> Tokenizer:
    """``<pad> <s> </s> <unk>`` are 0 to 3."""
    return Tokenizer.train([*ENGLISH, *FRENCH], 48, "unigram", template=template)  # type: ignore[arg-type]


def t5(tied: bool = True) -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=16,
            d_kv=8,
            num_heads=2,
            num_layers=2,
            d_ff=32,
            vocab_size=48,
            pad_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=0,
            initializer_factor=3.0,
            tie_word_embeddings=tied,
            feed_forward_proj="relu" if tied else "gated-gelu",
        )
    )


SIZES = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "vocab_size": 48,
    "init_std": 0.3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "max_position_embeddings": 40,
}


def bart() -> Any:
    ids = {"bos_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES, **ids))


def marian() -> Any:
    return transformers.MarianMTModel(
        transformers.MarianConfig(**SIZES, decoder_start_token_id=0, forced_eos_token_id=2, bos_token_id=None)
    )


def gpt2() -> Any:
    size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "vocab_size": 48, "initializer_range": 0.3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, bos_token_id=2, eos_token_id=2))


def llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            vocab_size=48,
            max_position_embeddings=30,
            initializer_range=0.3,
            bos_token_id=1,
            eos_token_id=[2, 7],
            pad_token_id=0,
        )
    )


MAKERS: dict[str, tuple[Callable[[], Any], str]] = {
    "t5": (t5, "end"),
    "t5-untied": (lambda: t5(False), "end"),
    "bart": (bart, "both"),
    "marian": (marian, "end"),
    "gpt2": (gpt2, "none"),
    "llama": (llama, "start"),
}
GENERATION = {
    "bart": {"num_beams": 3, "min_length": 4, "max_length": 20, "no_repeat_ngram_size": 2, "early_stopping": True},
    "marian": {
        "num_beams": 2,
        "max_length": 24,
        "bad_words_ids": [[0]],
        "renormalize_logits": True,
        "min_new_tokens": 3,
    },
    "t5": {"max_length": 20},
    "t5-untied": {"num_beams": 2, "length_penalty": 0.6, "max_new_tokens": 9},
    "gpt2": {"max_new_tokens": 8},
    "llama": {"max_new_tokens": 8, "repetition_penalty": 1.2},
}


def folder_of(name: str, place: Path) -> Path:
    """A folder as transformers writes it, with a tokenizer of the family's manner."""
    make, template = MAKERS[name]
    torch.manual_seed(3)
    model = make().eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.generation_config.update(**GENERATION[name])
    folder = place / name
    model.save_pretrained(folder)
    fast = tokenizer("none" if template == "start" else template)
    fast.save(folder)
    if template == "start":
        from tokenizers import processors

        opened = Tokenizer.load(folder)
        opened.backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        opened.save(folder)
    return folder


def theirs_of(folder: Path, name: str) -> tuple[Any, Any]:
    """Their model and tokenizer; a pad token at the start of a target is not one to skip in a loss."""
    kind = transformers.AutoModelForCausalLM if name in DECODERS else transformers.AutoModelForSeq2SeqLM
    return kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


# --------------------------------------------------------------------------------------------------------- as they lie


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_a_published_encoder_decoder_translates_as_in_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    theirs, fast = theirs_of(folder, name)
    pipe = heedful.pipeline(None, folder, device="cpu")
    assert pipe.task.name == "translation"
    assert dict(pipe.model.generation).items() >= GENERATION[name].items()
    told = set()
    for text, answer in zip(ENGLISH, pipe(ENGLISH), strict=True):
        ids = fast(text, return_tensors="pt").input_ids
        made = theirs.generate(ids, attention_mask=torch.ones_like(ids))
        assert answer["output"] == fast.decode(made[0], skip_special_tokens=True)
        told.add(answer["output"])
    assert len(told) > 1


@pytest.mark.parametrize("name", DECODERS)
def test_a_published_decoder_goes_on_as_in_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    theirs, fast = theirs_of(folder, name)
    pipe = heedful.pipeline(None, folder, device="cpu")
    assert pipe.task.name == "text-generation"
    for text in ENGLISH:
        given = fast(text, return_tensors="pt").input_ids
        assert given[0, 0] == 1 or name == "gpt2"
        made = theirs.generate(given, attention_mask=torch.ones_like(given), pad_token_id=0)
        whole, before = (fast.decode(row, skip_special_tokens=True) for row in (made[0], given[0]))
        assert pipe(text)["output"] == text + whole[len(before) :]
    if name == "llama":  # made for 30 positions, it can count further
        made = theirs.generate(given, attention_mask=torch.ones_like(given), pad_token_id=0, max_new_tokens=40)
        assert torch.equal(pipe.model.generate(given, max_new_tokens=40), made)
    assert pipe.task.context == {"gpt2": 24, "llama": 30}[name]
    assert pipe("", max_new_tokens=40, min_new_tokens=40)[
        "output"
    ]  # beyond its positions: it reads the last half again


def test_where_the_folder_searches_the_answer_comes_as_a_whole(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "num_beams": 3}))
    pipe = heedful.pipeline(None, folder, device="cpu")
    assert list(pipe.stream("the cat")) == [pipe("the cat")["output"]]
    assert len(list(pipe.stream("the cat", num_beams=1))) > 1
    with pytest.raises(HeedfulError, match="a beam search cannot stream"):
        pipe.stream("the cat", num_beams=2)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_the_loss_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    theirs, fast = theirs_of(folder, name)
    task, model = Translation.load(folder), load(folder, dtype="float64")
    rows = Rows((Row(dict(zip(("source", "target"), pair, strict=True)), "x", 1) for pair in zip(ENGLISH, FRENCH)), 0)  # noqa: B905
    batch = task.collate(task.encode(rows).examples)
    source = fast(ENGLISH, return_tensors="pt", padding=True)
    labels = fast(FRENCH, return_tensors="pt", padding=True)
    labels = labels.input_ids.masked_fill(labels.attention_mask == 0, -100)
    assert torch.equal(batch["source"], source.input_ids)
    assert torch.equal(batch["source_mask"], source.attention_mask.bool())
    assert torch.equal(batch["labels"], labels)
    fed = theirs.prepare_decoder_input_ids_from_labels(labels)
    real = labels != -100
    assert torch.equal(batch["target"][real], fed[real])
    loss = theirs.double()(input_ids=source.input_ids, attention_mask=source.attention_mask, labels=labels).loss
    ours = task.objective(model, batch) / task.count(batch)
    assert ours.item() == approx(loss.item(), "gradient")  # ours in float32


def test_documents_begin_and_end_as_the_tokenizer_and_the_model_say(tmp_path: Path) -> None:
    from heedful.tasks.documents import joined_tokens
    from heedful.tasks.text_generation import TextGeneration

    bare = {name: TextGeneration.load(folder_of(name, tmp_path)) for name in DECODERS}

    def stream(task: TextGeneration) -> list[int]:
        return joined_tokens(
            task.tokenizer, [Row({"text": text}, "", 1) for text in ENGLISH[:2]], task.begins, task.closes
        ).tolist()

    one, two = (tokenizer("none").encode([text])[0] for text in ENGLISH[:2])
    assert stream(bare["gpt2"]) == [2, *one, 2, *two]
    assert stream(bare["llama"]) == [1, *one, 2, 1, *two, 2]
    ends = json.loads((tmp_path / "llama" / "generation_config.json").read_text())
    (tmp_path / "llama" / "generation_config.json").write_text(json.dumps({**ends, "eos_token_id": [1, 2]}))
    told = TextGeneration.load(tmp_path / "llama")  # where <s> ends a text, too
    assert stream(told) == [1, *one, 1, *two]
    assert told.prompt_ids(["", "a"])[0] == [1]
    assert bare["gpt2"].prompt_ids(["", "a"])[0] == [2]


# ----------------------------------------------------------------------------------------------------- which task it is


def test_a_model_that_answers_nothing_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=320, **size)).save_pretrained(tmp_path / "bert")
    tokenizer("both").save(tmp_path / "bert")
    with pytest.raises(HeedfulError, match=r"names no task.* kind 'no-head'") as caught:
        heedful.pipeline(None, tmp_path / "bert")
    assert "\n" not in str(caught.value)
    with pytest.raises(HeedfulError, match="text-classification needs a"):
        heedful.pipeline("text-classification", tmp_path / "bert")
    assert main(["predict", str(tmp_path / "bert"), "I love it"]) == 2
    assert "names no task" in capsys.readouterr().err
    with pytest.raises(HeedfulError, match="translation needs an encoder-decoder"):
        heedful.pipeline("translation", tmp_path / "bert")


def test_the_head_says_what_a_published_model_is_for(tmp_path: Path) -> None:
    from heedful.tasks.published import task_of

    body = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = transformers.BertConfig(vocab_size=320, **body)
    transformers.BertForSequenceClassification(bert).save_pretrained(tmp_path / "sequence")
    transformers.BertForMaskedLM(bert).save_pretrained(tmp_path / "masked")
    vit = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **body)
    transformers.ViTForImageClassification(vit).save_pretrained(tmp_path / "image")
    assert task_of(tmp_path / "sequence") == "text-classification"
    assert task_of(tmp_path / "image") == "image-classification"
    assert task_of(tmp_path / "masked") == "fill-mask"
    transformers.BertModel(bert).save_pretrained(tmp_path / "bare")
    with pytest.raises(HeedfulError, match="names no task, and no task uses"):
        task_of(tmp_path / "bare")


# ----------------------------------------------------------------------------------------------------------- fine-tuned


def trained(name: str, task: str, data: str, place: Path) -> tuple[Path, Path]:
    folder, out = folder_of(name, place), place / "out"
    file = place / ("pairs.tsv" if task == "translation" else "text.txt")
    file.write_text(data)
    line = ["train", task, "--train", str(file), "--valid", str(file), "--from", str(folder), "--out", str(out)]
    assert main([*line, "--max-steps", "3", "--training.lr", "0.01", "--device", "cpu", "--json"]) == 0
    return folder, out


def checked(name: str, folder: Path, out: Path) -> tuple[Any, Any, Any]:
    """Their model of the result, and the tokenizer and settings kept; the weights are others."""
    theirs, fast = theirs_of(out, name)
    before = theirs_of(folder, name)[1]
    assert [fast(text).input_ids for text in ENGLISH] == [before(text).input_ids for text in ENGLISH]
    kept = theirs.generation_config
    assert {key: getattr(kept, key) for key in GENERATION[name]} == GENERATION[name]
    assert not kept.do_sample
    ours = load(out)
    assert not all(torch.equal(a, b) for a, b in zip(ours.parameters(), load(folder).parameters(), strict=True))
    return ours, theirs, fast


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_a_published_encoder_decoder_is_fine_tuned(name: str, tmp_path: Path) -> None:
    pairs = "".join(f"{en}\t{fr}\n" for en, fr in zip(ENGLISH, FRENCH, strict=True))
    ours, theirs, fast = checked(name, *trained(name, "translation", pairs, tmp_path))
    source, target = fast(ENGLISH[0], return_tensors="pt").input_ids, torch.tensor([[ours.config.special.start, 7, 9]])
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=target).logits
        assert (ours(source, target) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", DECODERS)
def test_a_published_decoder_is_fine_tuned(name: str, tmp_path: Path) -> None:
    ours, theirs, fast = checked(name, *trained(name, "text-generation", "\n".join(ENGLISH * 6), tmp_path))
    ids = fast(ENGLISH[0], return_tensors="pt").input_ids
    with torch.no_grad():
        expected = theirs(ids).logits
        assert (ours(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()


# --------------------------------------------------------------------------------------------------- Marian's own files


@pytest.fixture
def helsinki(tmp_path: Path) -> Path:
    """As OPUS-MT's folders lie on the Hub: two SentencePiece models, one vocabulary, everything else in config.json."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path / "opus"
    pieces = ["</s>", "<unk>"]
    for side, texts in (("source", ENGLISH), ("target", FRENCH)):
        sentences = iter([text for text in texts for _ in range(20)])
        with (folder.parent / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences, model_writer=file, vocab_size=34, hard_vocab_limit=False, minloglevel=2
            )
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder.parent / f"{side}.spm"))
        pieces += [model.id_to_piece(i) for i in range(model.get_piece_size())]
    ids = {piece: i for i, piece in enumerate(dict.fromkeys([p for p in pieces if p != "<s>"] + ["<pad>"]))}
    end, pad = ids["</s>"], ids["<pad>"]
    sizes = SIZES | {"vocab_size": len(ids), "eos_token_id": end, "pad_token_id": pad}
    torch.manual_seed(5)
    config = transformers.MarianConfig(**sizes, decoder_start_token_id=pad, forced_eos_token_id=end, bos_token_id=None)
    model = transformers.MarianMTModel(config)
    model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    for side in ("source", "target"):
        (folder.parent / f"{side}.spm").rename(folder / f"{side}.spm")
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "fr"}))
    old = {"bad_words_ids": [[pad]], "num_beams": 4, "max_length": 24, "forced_eos_token_id": end}
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **old}))
    return folder


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_s_own_files_translate_and_learn(helsinki: Path, tmp_path: Path) -> None:
    theirs = transformers.MarianMTModel.from_pretrained(helsinki).eval()
    fast = transformers.MarianTokenizer.from_pretrained(helsinki)
    pipe = heedful.pipeline(None, helsinki, device="cpu")
    assert pipe.model.generation["num_beams"] == 4
    task = pipe.task
    assert isinstance(task, Translation)
    assert task.target is not task.source
    rows = Rows([Row({"source": ENGLISH[0], "target": FRENCH[0]}, "x", 1)], 0)
    [(source, target)] = task.encode(rows).examples
    asked = fast([ENGLISH[0]], text_target=[FRENCH[0]])
    assert (source, target) == (asked["input_ids"][0], asked["labels"][0])
    for text, answer in zip(ENGLISH, pipe(ENGLISH), strict=True):
        made = theirs.generate(**fast([text], return_tensors="pt"))
        assert answer["output"] == fast.decode(made[0], skip_special_tokens=True)
        assert answer["output"]
    file, out = tmp_path / "pairs.tsv", tmp_path / "out"
    file.write_text("".join(f"{en}\t{fr}\n" for en, fr in zip(ENGLISH, FRENCH, strict=True)))
    line = ["train", "translation", "--train", str(file), "--valid", str(file), "--from", str(helsinki)]
    assert main([*line, "--out", str(out), "--max-steps", "2", "--device", "cpu", "--json"]) == 0
    again = Translation.load(out)
    assert again.encode(rows).examples == [(source, target)]
    assert again.collate([(source, target)])["target"][0, 0] == theirs.config.decoder_start_token_id
    assert load(out).generation == pipe.model.generation
    theirs, ids = transformers.MarianMTModel.from_pretrained(out).eval(), torch.tensor([source])
    with torch.no_grad():
        expected = theirs(input_ids=ids, decoder_input_ids=ids).logits
        assert (load(out)(ids, ids) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_model_of_images_is_asked_for_no_tokenizer_and_one_of_texts_for_no_preprocessing(tmp_path: Path) -> None:
    """The message is about the model, not about a file that it never had."""
    heedful.create("vit-micro", seed=0).save_pretrained(tmp_path / "images")
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path / "texts")
    for task, folder, words in (
        ("text-classification", "images", "needs a model of text; the model in .*images is of kind 'vision'"),
        ("text-generation", "images", "needs a model of text"),
        ("image-classification", "texts", "needs a vision model; the model in .*texts is of kind 'decoder'"),
    ):
        with pytest.raises(HeedfulError, match=words):
            heedful.pipeline(task, tmp_path / folder)


@pytest.mark.parametrize("wrong", [None, 3, ("a", "b")], ids=str)
def test_inputs_that_are_no_texts_are_refused(wrong: Any, tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    tokenizer("none").save(tmp_path)
    pipe = heedful.pipeline(None, tmp_path, device="cpu")
    for ask in (pipe, lambda one: pipe(["a", one]), lambda one: list(pipe.stream(one))):
        with pytest.raises(HeedfulError, match=f"a list of texts; got {type(wrong).__name__}"):
            ask(wrong)
    expected = "no model is given for text-generation" if wrong is None else "give a model's folder or Hub id, not a"
    with pytest.raises(HeedfulError, match=expected):
        heedful.pipeline("text-generation", wrong)

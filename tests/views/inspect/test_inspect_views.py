"""The views that need a model's answer: steps, lens, image, gradient. Their numbers against the model's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import heedful
from heedful.adapters import LoraConfig, add_adapter
from heedful.generation import decode
from heedful.inspection import intervene
from heedful.text import Tokenizer
from heedful.views.inspect import steps_view
from heedful.views.inspect.inspect import inspect
from tolerances import approx, assert_close

Make = Callable[[str], Path]
TEXT = "a small dog sees"
SEEN = ["cat", "dog", "ball"]
IMAGE = np.arange(0, 288, 2, dtype=np.int64).clip(0, 255).astype(np.uint8).reshape(12, 12)


# ---------------------------------------------------------------------------------------------------------------- steps


def test_numbers_of_any_kind_choose(made: Make) -> None:
    for given in (1, np.int64(1), [np.int64(1)], range(1, 2)):
        assert inspect(made("encoder"), "a dog", layers=given).data["maps"][0]["layers"] == [1]
    for wrong in ("1", [0.5], 1.0):
        with pytest.raises(heedful.HeedfulError, match="are not whole numbers"):
            inspect(made("encoder"), "a dog", layers=wrong)  # type: ignore[arg-type]


def test_steps_say_what_generation_saw(made: Make) -> None:
    """The mean log-probability of the chosen tokens is the score that greedy decoding gives."""
    folder = made("decoder")
    data = inspect(folder, TEXT, view="steps", max_new_tokens=6).data
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = torch.tensor(tokenizer.encode([TEXT]))
    found = decode(model, ids, max_new_tokens=6)
    assert data["prompt"] == tokenizer.pieces(ids[0].tolist())
    assert data["generated"] == tokenizer.pieces(found.ids[0, ids.size(1) : int(found.lengths[0])].tolist())
    assert np.log(data["probabilities"]).mean() == approx(float(found.scores[0]))
    for chosen, piece, nearly in zip(data["probabilities"], data["generated"], data["candidates"], strict=True):
        assert nearly[0] == [piece, approx(chosen, "layer")]  # greedy took the likeliest
        assert [p for _, p in nearly] == sorted((p for _, p in nearly), reverse=True)


def test_steps_are_those_of_one_forward(made: Make) -> None:
    """Row t of the maps is the query that chose token t: the pattern of a plain forward over the whole text."""
    folder = made("decoder")
    data = inspect(folder, TEXT, view="steps", max_new_tokens=5, layers=[1], heads=[2, 0]).data
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    prompt = torch.tensor(tokenizer.encode([TEXT]))
    row = decode(model, prompt, max_new_tokens=5).ids
    with torch.no_grad(), heedful.record(model, "decoder.block.1.attention.pattern", heads=[2, 0]) as seen:
        model(row[:, :-1])
    wanted = seen["decoder.block.1.attention.pattern"][0, :, prompt.size(1) - 1 :]
    (maps,) = data["maps"]
    assert maps["keys"] == data["prompt"] + data["generated"]
    assert_close(maps["weights"][0, :, :, :-1], wanted.numpy())
    assert not maps["weights"][..., -1].any()  # the last token was never read


def test_steps_of_a_translation_by_beams(made: Make) -> None:
    folder = made("pair")
    data = inspect(folder, "two cats", view="steps", num_beams=3, max_new_tokens=5).data
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    source = torch.tensor([[*tokenizer.encode(["two cats"])[0], 2]])
    row = decode(model, source, num_beams=3, max_new_tokens=5).ids
    with torch.no_grad(), heedful.record(model, "cross_attention.pattern") as seen:
        logits = model(source, row[:, :-1])
    cross, own = data["maps"]
    assert (cross["name"], own["name"]) == ("cross-attention", "decoder self-attention")
    wanted = torch.cat(list(seen.values()))
    assert_close(cross["weights"], wanted.numpy())
    chosen = logits.softmax(-1)[0].gather(1, row[0, 1:, None])[:, 0]
    assert_close(data["probabilities"], chosen.numpy())
    assert own["keys"] == tokenizer.pieces(row[0].tolist())


@pytest.mark.parametrize(("kind", "text"), [("decoder", TEXT), ("pair", "two cats")])
def test_steps_of_given_ids_are_those_of_their_generation(made: Make, kind: str, text: str) -> None:
    folder = made(kind)
    options = {"view": "steps", "layers": [1], "heads": [1, 0]}
    written = inspect(folder, text, max_new_tokens=6, **options).data
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = torch.tensor([[*tokenizer.encode([text])[0], *([2] if kind == "pair" else [])]])
    found = decode(model, ids, max_new_tokens=6)
    row = found.ids[0, (1 if kind == "pair" else ids.size(1)) : int(found.lengths[0])].tolist()
    given = inspect(folder, text, target=row, **options).data
    assert given.keys() == written.keys()
    assert {**given, "maps": 0, "probabilities": 0, "candidates": 0} == {
        **written,
        "maps": 0,
        "probabilities": 0,
        "candidates": 0,
    }
    assert given["probabilities"] == approx(written["probabilities"], "layer")
    for ours, theirs in zip(given["maps"], written["maps"], strict=True):
        assert {**ours, "weights": 0} == {**theirs, "weights": 0}
        assert_close(ours["weights"], theirs["weights"])


def test_a_target_text_begins_at_its_first_token(made: Make) -> None:
    """The space between prompt and target belongs to the target; a token of both is the prompt's."""
    folder = made("decoder")
    whole = Tokenizer.load(folder).pieces(Tokenizer.load(folder).encode(["a small dog sees two cats"])[0])
    for prompt, target in (("a small dog", " sees two cats"), ("a small dog ", "sees two cats")):
        data = inspect(folder, prompt, target=target, view="steps").data
        assert data["prompt"] + data["generated"] == whole
        assert "".join(data["generated"]) == " sees two cats"
    cut = inspect(folder, "two ca", target="ts sees", view="steps").data
    assert ("".join(cut["prompt"]), "".join(cut["generated"])) == ("two cats", " sees")
    maps = inspect(folder, "a small dog", target=" sees two cats").data["maps"]
    assert maps[0]["queries"] == whole
    lens = inspect(folder, "a small dog", target=" sees two cats", view="lens").data
    assert lens["pieces"] == whole


def test_a_target_of_ids_is_checked(made: Make) -> None:
    for kind, view in (("decoder", "steps"), ("decoder", "heads"), ("pair", "heads"), ("pair", "steps")):
        for wrong in (100_000, -1):
            with pytest.raises(heedful.HeedfulError, match=f"token id {wrong}; the vocabulary has 0 to"):
                inspect(made(kind), "two cats", target=[wrong], view=view)
        with pytest.raises(heedful.HeedfulError, match="takes at most 32; give"):
            inspect(made("decoder"), "two cats", target=[5] * 40, view=view)
        with pytest.raises(heedful.HeedfulError, match="the target is empty"):
            inspect(made(kind), "two cats", target=[], view=view)
    with pytest.raises(heedful.HeedfulError, match="a list of token ids; for view 'gradient' of encoder, give a text"):
        inspect(made("encoder"), "two cats", target=[1], view="gradient")
    with pytest.raises(heedful.HeedfulError, match="adds no token to the prompt"):
        inspect(made("decoder"), "two ca", target="ts")


def test_the_weights_of_given_steps_are_bounded(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_view, "MAX_WEIGHTS", 2 * 4 * 2 * 4 - 1)
    with pytest.raises(
        heedful.HeedfulError, match="up to 64 weights, but at most 63 can be shown; choose fewer layers"
    ):
        inspect(made("decoder"), "aa", target=[5, 6], view="steps")
    assert inspect(made("decoder"), "aa", target=[5, 6], view="steps", layers=[0]).data["generated"]


def test_messages_are_written_with_the_chat_template(made: Make, tmp_path: Path) -> None:
    folder = tmp_path / "talker"
    shutil.copytree(made("decoder"), folder)
    talk = [{"role": "user", "content": "two cats"}]
    with pytest.raises(heedful.HeedfulError, match="no chat template"):
        inspect(folder, talk)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }} a red ball", encoding="utf-8")
    ours, theirs = inspect(folder, talk, target=" sees"), inspect(folder, "two cats a red ball", target=" sees")
    assert ours.data["maps"][0]["queries"] == theirs.data["maps"][0]["queries"]
    np.testing.assert_array_equal(ours.data["maps"][0]["weights"], theirs.data["maps"][0]["weights"])
    assert ours.title == "talker: two cats"
    plain = inspect(folder, "two cats a red ball").data["maps"][0]["queries"]
    assert inspect(folder, talk, view="steps", max_new_tokens=2).data["prompt"] == plain


def test_the_chat_template_of_an_adapter_wins_over_that_of_its_base(made: Make, tmp_path: Path) -> None:
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    shutil.copytree(made("decoder"), base)
    (base / "chat_template.jinja").write_text("{{ messages[0].content }} a red ball", encoding="utf-8")
    model = add_adapter(heedful.from_pretrained(base), LoraConfig(rank=2), seed=0)
    model.save_pretrained(tuned)
    talk = [{"role": "user", "content": "two cats"}]

    def pieces() -> str:
        return "".join(inspect(tuned, talk, target=" sees").data["maps"][0]["queries"])

    assert pieces() == "two cats a red ball sees"
    tokenizer = Tokenizer.load(base)
    tokenizer.config["chat_template"] = "a dog {{ messages[0].content }}"
    tokenizer.save(tuned)
    assert not (tuned / "chat_template.jinja").exists()
    assert pieces() == "a dog two cats sees"


def test_steps_stop_where_the_positions_end(made: Make) -> None:
    text = "a small dog sees two cats and the"  # 32 positions
    data = inspect(made("decoder"), text, view="steps", min_new_tokens=1).data
    assert len(data["prompt"]) + len(data["generated"]) <= 33
    assert len(data["generated"]) < steps_view.DEFAULT_NEW_TOKENS


def test_a_decoder_has_fewer_heads_than_its_encoder(made: Make) -> None:
    with pytest.raises(heedful.HeedfulError, match="no head 3; the decoder's heads are 0 to 1"):
        inspect(made("pair"), "two cats", view="steps", heads=[3])


# ----------------------------------------------------------------------------------------------------------------- lens


def test_the_last_layer_of_a_lens_is_the_model(made: Make) -> None:
    folder = made("decoder")
    data = inspect(folder, TEXT, view="lens").data
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = tokenizer.encode([TEXT])[0]
    with torch.no_grad():
        best = model(torch.tensor([ids])).softmax(-1)[0].topk(5)
    assert data["layers"] == ["embedding", "block 0", "block 1"]
    assert data["target"] == [*tokenizer.pieces(ids)[1:], ""]
    for cell, numbers, chances in zip(data["top"][-1], best.indices.tolist(), best.values.tolist(), strict=True):
        assert [name for name, _ in cell] == [
            name or f"<id {n}>" for n, name in zip(numbers, tokenizer.pieces(numbers), strict=True)
        ]
        assert_close([p for _, p in cell], chances)


def test_a_part_of_a_lens(made: Make) -> None:
    whole = inspect(made("pair"), "two cats", view="lens", target="les chats rouges").data
    part = inspect(made("pair"), "two cats", view="lens", target="les chats rouges", queries="1:3", layers=[2, 0]).data
    assert part["layers"] == ["block 2", "block 0"]
    assert part["pieces"] == whole["pieces"][1:3]
    assert part["target"] == whole["target"][1:3]
    assert [[name for name, _ in cell] for cell in part["top"][0]] == [
        [name for name, _ in cell] for cell in whole["top"][3][1:3]
    ]
    assert "positions 1:3" in part["note"]


# ---------------------------------------------------------------------------------------------------------------- image


def test_an_image(made: Make) -> None:
    """Rollout by hand, the classes of the model, and every pattern."""
    folder = made("vision")
    data = inspect(folder, IMAGE).data
    model = heedful.from_pretrained(folder)
    pixels = torch.from_numpy((IMAGE / 255 - 0.5) / 0.5).float()[None, None]
    with torch.no_grad(), heedful.record(model, "pattern") as seen:
        chances = model(pixels).softmax(-1)[0]
    best = chances.argsort(descending=True)
    assert [name for name, _ in data["classes"]] == [["cat", "dog", "ball"][i] for i in best.tolist()]
    assert_close([p for _, p in data["classes"]], chances[best].numpy(), "layer")
    patterns = torch.stack([pattern[0] for pattern in seen.values()]).double()
    assert_close(data["weights"], patterns.numpy(), "layer")
    flow = torch.eye(10, dtype=torch.float64)
    for pattern in patterns:
        flow = (0.5 * pattern.mean(0) + 0.5 * torch.eye(10)) @ flow
    assert_close(data["rollout"], flow[0, 1:].reshape(3, 3).numpy(), "layer")
    assert (data["grid"], data["prefix"]) == ([3, 3], ["[class]"])


def test_an_image_without_a_class_token(made: Make, tmp_path: Path) -> None:
    """The mean of the patches, which the head reads, and every other view of an image."""
    folder = made("patches")
    look = inspect(folder, IMAGE)
    model = heedful.from_pretrained(folder)
    pixels = torch.from_numpy((IMAGE / 255 - 0.5) / 0.5).float()[None, None]
    with torch.no_grad(), heedful.record(model, "pattern") as seen:
        chances = model(pixels).softmax(-1)[0]
    assert look.data["classes"][0][0] == SEEN[int(chances.argmax())]
    flow = torch.eye(9, dtype=torch.float64)
    for pattern in seen.values():
        flow = (0.5 * pattern[0].double().mean(0) + 0.5 * torch.eye(9)) @ flow
    assert_close(look.data["rollout"], flow.mean(0).reshape(3, 3).numpy(), "layer")
    assert (look.data["grid"], look.data["prefix"]) == ([3, 3], [])
    look.save(tmp_path / "look.svg")
    assert "reaches the mean of all patches" in (tmp_path / "look.svg").read_text(encoding="utf-8")
    for view in ("heads", "model", "matrix", "gradient", "importance"):
        assert inspect(folder, IMAGE, view=view).data
    answer = heedful.pipeline("image-classification", folder)([IMAGE])[0]
    assert answer["output"] == SEEN[int(chances.argmax())]


# ------------------------------------------------------------------------------------------------------------- gradient


def by_hand(model: torch.nn.Module, embedding: torch.nn.Embedding, number: Callable[[], torch.Tensor]) -> np.ndarray:
    """Σ_d e ∂y/∂e of each row that ``embedding`` hands out, by a hook that makes them leaves."""
    rows: list[torch.Tensor] = []

    def leaf(module: torch.nn.Module, given: object, out: torch.Tensor) -> torch.Tensor:
        rows.append(out.detach().requires_grad_())
        return rows[-1]

    with embedding.register_forward_hook(leaf):
        y = number()
    return (
        torch.stack([(g * r).sum(-1)[0] for g, r in zip(torch.autograd.grad(y, rows), rows, strict=True)])[0]
        .detach()
        .numpy()
    )


def test_the_gradient_of_the_next_token(made: Make) -> None:
    folder = made("decoder")
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = torch.tensor(tokenizer.encode([TEXT]))
    label = int(model(ids)[0, -1].argmax())
    wanted = by_hand(model, model.embedding.token, lambda: model(ids)[0, -1, label])
    data = inspect(folder, TEXT, view="gradient").data
    assert data["prediction"] == tokenizer.pieces([label])
    assert data["pieces"] == tokenizer.pieces(ids[0].tolist())
    assert_close(data["values"], wanted, "gradient")
    other = tokenizer.encode([" cats"])[0][0]
    wanted = by_hand(model, model.embedding.token, lambda: model(ids)[0, -1, other])
    data = inspect(folder, TEXT, view="gradient", target=" cats").data
    assert_close(data["values"], wanted, "gradient")


def test_the_gradient_of_a_text_too_long_to_be_drawn(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the last pieces, next to the answer, and says so; the numbers are of all."""
    whole = inspect(made("decoder"), "two cats see a dog", view="gradient")
    monkeypatch.setattr("heedful.views.inspect.gradient_views.DRAWN", 2)
    cut = inspect(made("decoder"), "two cats see a dog", view="gradient")
    count = len(whole.data["pieces"])
    assert count > 2
    assert cut.data["pieces"] == whole.data["pieces"]
    np.testing.assert_array_equal(cut.data["values"], whole.data["values"])
    assert f"Drawn are the last 2 of {count} pieces" in cut.svg()
    assert cut.html().count('<th scope="row">') == 2


def test_the_gradient_of_each_target_token(made: Make) -> None:
    folder = made("pair")
    data = inspect(folder, "two cats", view="gradient", target="les chats").data
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    source, target = ([*ids, 2] for ids in tokenizer.encode(["two cats", "les chats"]))
    read = torch.tensor([[1, *target[:-1]]])
    assert data["values"].shape == (len(target), len(source))
    assert data["prediction"] == tokenizer.pieces(target)

    # by finite differences of the source's embedding, which the target does not use
    with torch.no_grad():
        embedded = model.embedding(torch.tensor([source]))
        for place in range(len(source)):
            sides = []
            for step in (1.01, 0.99):
                bent = embedded.clone()
                bent[:, place] *= step
                memory = model.encoder(bent)
                sides.append(float(model.head(model.decode(read, memory))[0, 1, target[1]]))
            assert data["values"][1, place] == pytest.approx((sides[0] - sides[1]) / 0.02, rel=2e-2, abs=2e-3)


def test_the_gradient_of_a_label(made: Make) -> None:
    folder = made("encoder")
    values = {label: inspect(folder, TEXT, view="gradient", target=label).data["values"] for label in ("no", "yes")}
    answer = heedful.pipeline(None, folder)(TEXT)["output"]
    data = inspect(folder, TEXT, view="gradient").data
    assert data["prediction"] == [answer]
    np.testing.assert_array_equal(data["values"], values[answer])
    assert not np.allclose(values["no"], values["yes"])
    with pytest.raises(heedful.HeedfulError, match=r"the model has no label 'yess'; did you mean 'yes'\?"):
        inspect(folder, TEXT, view="gradient", target="yess")


def test_the_gradient_of_an_image_is_one_value_a_patch(made: Make) -> None:
    folder = made("vision")
    data = inspect(folder, IMAGE, view="gradient", target="dog").data
    model = heedful.from_pretrained(folder)
    pixels = torch.from_numpy((IMAGE / 255 - 0.5) / 0.5).float()[None, None]
    patches = F.conv2d(pixels, model.embedding.projection.weight, model.embedding.projection.bias, stride=4)
    rows = torch.cat((model.embedding.prefix, patches.flatten(2).mT), 1).detach().requires_grad_()
    (slopes,) = torch.autograd.grad(model.head(model.encoder(rows))[0, 1], rows)
    wanted = (slopes * rows).sum(-1)[0, 1:].reshape(3, 3).detach()
    assert_close(data["values"], wanted.numpy(), "gradient")


# ----------------------------------------------------------------------------------------------------------- importance


def test_importance_is_the_slope_of_the_loss(made: Make) -> None:
    """Against the loss with one head turned down a little."""
    folder = made("pair")
    data = inspect(folder, ["two cats"], view="importance", target="les chats").data
    assert list(data["importance"]) == ["cross-attention", "decoder self-attention", "encoder self-attention"]
    model, tokenizer = heedful.from_pretrained(folder, dtype="float64"), Tokenizer.load(folder)
    source, target = ([*ids, 2] for ids in tokenizer.encode(["two cats", "les chats"]))

    def loss(gate: float, path: str, head: int) -> float:
        with torch.no_grad(), intervene(model, path, lambda old: old * gate, heads=[head]):
            logits = model(torch.tensor([source]), torch.tensor([[1, *target[:-1]]]))[0]
        return float(F.cross_entropy(logits, torch.tensor(target), reduction="sum"))

    path = "decoder.block.2.cross_attention.mixed"
    for head in range(2):
        slope = (loss(1.001, path, head) - loss(0.999, path, head)) / 0.002
        assert data["importance"]["cross-attention"][2, head] == pytest.approx(abs(slope), rel=1e-3)


def test_importance_of_several_inputs_is_their_mean(made: Make) -> None:
    folder = made("decoder")
    each = [
        inspect(folder, text, view="importance").data["importance"]["self-attention"] for text in (TEXT, "the cats")
    ]
    both = inspect(folder, [TEXT, "the cats"], view="importance").data["importance"]["self-attention"]
    assert_close(both, (each[0] + each[1]) / 2)
    assert both.shape == (2, 4)


# -------------------------------------------------------------------------------------------------------- other heads


def test_a_masked_language_model(made: Make) -> None:
    """It says what stands at each place; the gradient view asks for its first mask."""
    folder, text = made("filler"), "a small <mask> sees"
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = [1, *tokenizer.encode([text])[0], 2]
    data = inspect(folder, text, view="lens").data
    assert data["target"] == data["pieces"] == tokenizer.pieces(ids)
    place = ids.index(tokenizer.mask)
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0, place]
    best = int(logits.argmax())
    assert data["top"][-1][place][0] == [tokenizer.pieces([best])[0], pytest.approx(float(logits.softmax(-1)[best]))]
    data = inspect(folder, text, view="gradient").data
    assert data["prediction"] == tokenizer.pieces([best])
    wanted = by_hand(model, model.embedding.token, lambda: model(torch.tensor([ids]))[0, place, best])
    # segments are part of the embedding: their share is the difference of two exact numbers
    segment = by_hand(model, model.embedding.segment, lambda: model(torch.tensor([ids]))[0, place, best])
    assert_close(data["values"], wanted + segment, "gradient")
    with pytest.raises(heedful.HeedfulError, match="no mask; write <mask> in it"):
        inspect(folder, "a small dog", view="gradient")


def test_an_encoder_decoder_that_classifies(made: Make) -> None:
    folder = made("judge")
    maps = inspect(folder, TEXT).data["maps"]
    assert [one["name"] for one in maps] == ["cross-attention", "encoder self-attention", "decoder self-attention"]
    assert maps[0]["queries"] == maps[2]["queries"] == ["<s>", *maps[0]["keys"][:-1]]
    answer = heedful.pipeline(None, folder)(TEXT)["output"]
    data = inspect(folder, TEXT, view="gradient").data
    assert data["prediction"] == [answer]
    assert data["pieces"] == maps[0]["keys"]
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    ids = [*tokenizer.encode([TEXT])[0], 2]
    number = ["no", "yes"].index(answer)
    source, target = torch.tensor([ids]), torch.tensor([[1, *ids[:-1]]])
    rows: list[torch.Tensor] = []

    def leaf(module: torch.nn.Module, given: object, out: torch.Tensor) -> torch.Tensor:
        rows.append(out.detach().requires_grad_())
        return rows[-1]

    with model.embedding.register_forward_hook(leaf):
        slopes = torch.autograd.grad(model(source, target)[0, number], rows)
    own, again = ((slope * row).sum(-1)[0].detach().numpy() for slope, row in zip(slopes, rows, strict=True))
    assert_close(data["values"], own + np.append(again[1:], 0), "gradient")


# ----------------------------------------------------------------------------------------------------------- similarity


def test_similarity_is_that_of_sentence_vectors(shared_data: Callable[[str], Path]) -> None:
    """Pooled as the folder says; against vectors pooled here, and against the model with its pooled head."""
    folder = shared_data("weights/minilm-l6")
    texts = ["A cat sat on the mat.", "The kitten was sitting.", "Prices rose by three per cent."]
    found = inspect(folder, texts, view="similarity").data["similarity"]
    model = heedful.from_pretrained(folder, head="pooled", dtype="float32")
    with torch.no_grad():
        ids = [torch.tensor([[101, *row, 102]]) for row in Tokenizer.load(folder).encode(texts)]
        vectors = torch.cat([model.hidden(row).mean(1) for row in ids]).double()
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    assert_close(found, (unit @ unit.T).numpy())
    assert_close(inspect((model, folder), texts, view="similarity").data["similarity"], found)
    assert found[0, 1] > found[0, 2]


def test_similarity_is_of_the_row_that_the_head_reads(made: Make) -> None:
    folder, texts = made("encoder"), [TEXT, "the cats"]
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    with torch.no_grad():
        first = [model.hidden(torch.tensor([[1, *ids, 2]]))[0, 0] for ids in tokenizer.encode(texts)]
    found = inspect(folder, texts, view="similarity").data
    assert "the first token" in found["note"]
    assert found["similarity"][0, 1] == approx(float(F.cosine_similarity(*first, dim=0)))


def test_the_nearest_embeddings(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("weights/minilm-l6")
    data = inspect(folder, "I love transformers", view="embeddings").data
    table = heedful.from_pretrained(folder, dtype="float32").embedding.token.weight.detach().double()
    tokenizer = Tokenizer.load(folder)
    love = tokenizer.encode(["love"])[0][0]
    cosines = F.cosine_similarity(table, table[love][None])
    best = cosines.topk(9).indices[1:]
    assert [name for name, _ in data["neighbours"][2]] == tokenizer.pieces(best.tolist())
    assert_close([c for _, c in data["neighbours"][2]], cosines[best].numpy(), dtype=torch.float32)

"""Ids of the folder's tokenizer against ``transformers.AutoTokenizer``, on texts that are odd on purpose."""

from __future__ import annotations

from heedful.errors import HeedfulError
from heedful.text import Tokenizer
from heedful.verify import reference as theirs
from heedful.verify.report import Outcome, Skipped
from heedful.verify.verified_folder import Subject

ODD = (
    "Hello, world!",
    "I don't think it's over — we'll see…",
    "  two  spaces   and a tab\t, then\na new line\n\n",
    "naïve café, Zürich, Straße",
    "cafe\u0301 with a combining accent",
    "ＡＢＣ １２３ ﬁne",
    "1234567890 3.14159 1,000,000 2026-11-22",
    "東京は日本の首都です。 안녕하세요",
    "مرحبا بالعالم — שלום",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽",
    "zero\u200bwidth\u00a0and no-break",
    "internationalisation" * 4,
    "e-mail: a.b+c@example.org, https://example.org/?q=1&r=%20",
    "MiXeD CaSe and ALLCAPS",
)


def against_transformers(subject: Subject) -> Outcome:
    """How many of the texts get other ids: bare, and one, and a pair, with the special tokens around them."""
    if not Tokenizer.lies_in(subject.folder):
        raise Skipped("the folder has no tokenizer")
    try:
        ours = Tokenizer.load(subject.folder)
    except HeedfulError as error:
        raise Skipped(f"the tokenizer does not open here: {error}") from None
    texts = [*ODD, *subject.texts]
    with theirs.quiet() as transformers:
        other = transformers.AutoTokenizer.from_pretrained(subject.folder)
        wrong = []
        for text, found in zip(texts, ours.encode(texts), strict=True):
            wanted = other(text, add_special_tokens=False)["input_ids"]
            if found != wanted:
                wrong.append(text)
        for pair in (texts[:1], texts[:2]):
            made = ours.around(pair=len(pair) > 1).join(*ours.encode(pair))[0]
            if made != other(*pair)["input_ids"]:
                wrong.append(" + ".join(pair))
    reason = f"{wrong[0]!r} gets other ids" if wrong else ""
    return Outcome(difference=float(len(wrong)), allowed=0.0, reason=reason)

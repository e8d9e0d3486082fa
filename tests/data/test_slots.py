"""Texts whose boundaries outnumber the slots are told, with a setting that helps."""

from __future__ import annotations

import re

import pytest

from mlx_amort.config.model import BoundaryRule, ModelConfig
from mlx_amort.data.card import describe
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.parts import MemoryPart
from mlx_amort.data.slots import LARGE_SHARE, warn_of_slots

TEXTS = {
    "Chinese": "我们每天都学习新的东西，然后写下来。\n" * 300,  # noqa: RUF001
    "Thai": "นี่คือข้อความภาษาไทยที่ไม่มีช่องว่าง" * 200,
    "Hindi": "यह हिन्दी में एक वाक्य है और इसमें शब्द हैं। " * 200,
}
ENGLISH = "Words of a few letters, with a space between them and now and then a comma. " * 200


def corpus_of(text: str) -> Corpus:
    return Corpus("text", "uint8", (MemoryPart(text.encode(), "", ("",)),), (), 100)


@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("rule", ["every", "first"])
def test_scripts_without_spaces_are_told(script: str, rule: BoundaryRule) -> None:
    corpus, model = corpus_of(TEXTS[script]), ModelConfig(boundary_rule=rule)
    warning = warn_of_slots(corpus, model)
    assert warning is not None
    told = re.match(r"(\d+)% of the boundaries of text get no slot; ", warning)
    share = describe(corpus, model.seq, model.patch_stride)["boundaries"][rule]["unslotted_share"]
    assert told is not None and int(told[1]) == pytest.approx(100 * share, abs=1)
    assert share >= LARGE_SHARE
    assert warning.endswith("model.patch_stride=2 leaves 0% or model.trunk=recurrent, which has no slots")


def test_a_setting_that_helps_silences_it() -> None:
    corpus = corpus_of(TEXTS["Chinese"])
    assert warn_of_slots(corpus, ModelConfig(patch_stride=2)) is None
    assert warn_of_slots(corpus, ModelConfig(trunk="recurrent")) is None
    assert warn_of_slots(corpus_of(ENGLISH), ModelConfig()) is None
    code = corpus_of("if (a[i] == b[j]) { c += d->e(); }\n" * 300)
    warning = warn_of_slots(code, ModelConfig(boundary_rule="every"))
    assert warning is not None and "model.boundary_rule=first leaves" in warning
    assert warn_of_slots(corpus_of("short"), ModelConfig()) is None

"""The words that simulated answers are made of, by their place in a sentence, and what may follow what. Data only."""

from __future__ import annotations

from collections.abc import Mapping


def _spaced(text: str) -> tuple[str, ...]:
    return tuple(f" {word}" for word in text.split())


_OPENERS = "The This That Your Each Every One Another Their Our"

# A word belongs to one class only, so that the last word alone tells what may come next. Words after "a" start with
# a consonant.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "first_opener": tuple(_OPENERS.split()),
    "opener": _spaced(_OPENERS),
    "adjective": _spaced(
        "small patient careful bright quiet clever steady busy friendly cheerful modest honest gentle curious "
        "practical proper likely simple sensible lively"
    ),
    "subject": _spaced(
        "plan answer question idea method recipe garden kitchen teacher traveller neighbour writer reader doctor "
        "team project letter story lesson market village river train cyclist builder painter museum holiday "
        "budget schedule report meeting customer library festival orchestra"
    ),
    "adverb": _spaced("often usually rarely always sometimes quietly easily probably certainly gladly"),
    "verb": _spaced(
        "keeps needs finds holds follows brings makes gives takes shows explains offers suggests covers changes "
        "saves carries prepares improves includes leaves opens supports reaches protects describes compares mentions"
    ),
    "determiner": _spaced("the a some"),
    "modifier": _spaced("warm fresh short useful local familiar long second whole little better cheaper clear full"),
    "object": _spaced(
        "bread map list ticket table window street bridge picture number reason result detail habit weekend "
        "morning breakfast coffee music weather season language paper price promise place choice moment surprise "
        "notebook suitcase bicycle candle chapter mistake"
    ),
    "preposition": _spaced("near before after with without for during behind beside through"),
    "pointer": _spaced("this that our your every another my next last"),
    "setting": _spaced(
        "house garage station harbour office school forest mountain valley castle corner afternoon "
        "evening summer winter spring year month week visit dinner walk trip chance deadline"
    ),
    "comma": (",",),
    "joint": _spaced("and so but because while since"),
    "pronoun": _spaced("it she he"),
    "stop": (".",),
}

# For each class the classes that may follow, with weights.
FOLLOWERS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "first_opener": (("adjective", 3), ("subject", 7)),
    "opener": (("adjective", 4), ("subject", 6)),
    "adjective": (("subject", 1),),
    "subject": (("adverb", 2), ("verb", 8)),
    "adverb": (("verb", 1),),
    "verb": (("determiner", 1),),
    "determiner": (("modifier", 4), ("object", 6)),
    "modifier": (("object", 1),),
    "object": (("stop", 4), ("preposition", 4), ("comma", 2)),
    "preposition": (("pointer", 1),),
    "pointer": (("setting", 1),),
    "setting": (("stop", 7), ("comma", 3)),
    "comma": (("joint", 1),),
    "joint": (("pronoun", 1),),
    "pronoun": (("verb", 1),),
    "stop": (("opener", 1),),
}

WORDS: tuple[str, ...] = tuple(word for words in CLASSES.values() for word in words)

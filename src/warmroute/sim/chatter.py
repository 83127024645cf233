"""What simulated users say: plausible short messages, drawn from templates. The same generator, the same words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "place": [
        "Lisbon",
        "Vienna",
        "Hamburg",
        "Kyoto",
        "Montreal",
        "Valencia",
        "Edinburgh",
        "Ghent",
        "Trieste",
        "Oaxaca",
    ],
    "person": [
        "my sister",
        "my parents",
        "a colleague",
        "two friends",
        "our children",
        "my neighbour",
        "an old teacher",
    ],
    "event": [
        "a birthday dinner",
        "a weekend trip",
        "a small concert",
        "a team meeting",
        "a garden party",
        "a farewell",
    ],
    "food": [
        "lentils",
        "mushrooms",
        "rice",
        "salmon",
        "chickpeas",
        "potatoes",
        "spinach",
        "eggs",
        "tomatoes",
        "pumpkin",
    ],
    "topic": [
        "compound interest",
        "photosynthesis",
        "how a heat pump works",
        "the offside rule",
        "inflation",
        "time zones",
        "sourdough",
        "why the sky is blue",
        "how vaccines work",
        "the difference between a virus and a bacterium",
    ],
    "thing": [
        "bicycle",
        "sofa",
        "coffee machine",
        "laptop",
        "tent",
        "washing machine",
        "camera",
        "piano",
        "pair of boots",
    ],
    "time": [
        "on Friday",
        "next week",
        "in spring",
        "before noon",
        "after work",
        "in two days",
        "at the weekend",
        "this evening",
    ],
    "mood": ["short and friendly", "polite but firm", "cheerful", "formal", "simple", "a little funny"],
    "number": ["two", "three", "four", "five", "six", "eight", "ten", "twelve"],
    "reason": [
        "we have little time",
        "the budget is tight",
        "one of us does not eat meat",
        "it may rain",
        "I have never done it before",
        "the train leaves early",
        "it should not take long",
        "we want to sit outside",
    ],
}

_OPENERS: Final = (
    "Could you help me plan {event} in {place} for {number} people?",
    "What should I cook {time} with {food} and {food}? There will be {number} of us.",
    "Can you explain {topic} in simple words?",
    "I am looking for a used {thing}. What should I check before I buy it?",
    "Please write {mood} note to {person} about {event} {time}.",
    "We are going to {place} {time} with {person}. What should we see if {reason}?",
    "My {thing} makes a strange noise since yesterday. What could it be?",
    "How do I tell {person} that I cannot come to {event}?",
    "I want to learn about {topic}. Where should I begin if {reason}?",
)

_FOLLOW_UPS: Final = (
    "That sounds good. What if {reason}?",
    "And how would it change {time}?",
    "Could you say that more briefly, and make it {mood}?",
    "Thank you. What else should I think of when {reason}?",
    "I forgot to say that {person} will come too. Does that change anything?",
    "Why that, and not {food}?",
    "Please give me {number} more ideas, {mood} if you can.",
    "Hmm, {reason}. Is there another way?",
    "Which of these would you choose for {event}?",
    "How much should I expect to pay for that in {place}?",
    "Can we do it {time} instead?",
)

_NOTES: Final = (
    "On day {number} we met {person} near the station and talked about {topic}.",
    "The {thing} was not where we had left it, because {reason}.",
    "For lunch there was {food} with {food}, and it was better than in {place}.",
    "We should plan {event} {time}, for {number} people at most.",
    "{person} asked twice about {topic}, and nobody had a good answer.",
    "Remember to bring the {thing} and something with {food}, since {reason}.",
)

_ROLES: Final = (
    "a travel adviser who knows trains, small hotels and good cheap restaurants",
    "a patient cook who helps people with what they have in the kitchen",
    "a teacher who explains everyday science without formulas",
    "a friendly writer who helps with letters, notes and invitations",
)

_RULES: Final = (
    "Answer in the language of the question.",
    "Keep answers short, and begin with the part that matters most.",
    "Ask one question back when something important is missing.",
    "Never invent names, prices or opening hours; say so when you do not know.",
    "Give at most five items in a list, and one line for each.",
    "Mention a cheaper way where there is one.",
    "Mind allergies, children and people who cannot walk far.",
    "Do not repeat the question, and do not praise it.",
    "Use plain words, and explain the ones that are not.",
    "End with a single next step that can be done today.",
)

PERSONAS: Final = len(_ROLES)


def system_prompt(persona: int) -> str:
    """The system prompt of a persona (0 to PERSONAS - 1): the same text for everybody who talks to it."""
    first = persona % len(_RULES)
    rules = [*_RULES[first:], *_RULES[:first]]
    return f"You are {_ROLES[persona]}. " + " ".join(rules)


def opening(rng: random.Random) -> str:
    """The first message of a conversation."""
    return _fill(rng, rng.choice(_OPENERS))


def follow_up(rng: random.Random) -> str:
    """A later message."""
    return _fill(rng, rng.choice(_FOLLOW_UPS))


def pasted_notes(rng: random.Random, sentences: int) -> str:
    """A long first message: notes to be summed up, some 14 tokens a sentence."""
    notes = " ".join(_fill(rng, rng.choice(_NOTES)) for _ in range(sentences))
    return f"Here are my notes, please sum them up and keep what is to be done:\n\n{notes}"


def _fill(rng: random.Random, template: str) -> str:
    parts = template.split("{")
    filled = parts[0]
    for part in parts[1:]:
        name, _, rest = part.partition("}")
        filled += rng.choice(_WORDS[name]) + rest
    return filled[0].upper() + filled[1:]

"""What a request does, and what its prompt had in common with the pool, in words for people. No Qt.

A short form stands beside a chat's title, a sentence below its reply and in tool tips.
"""

from __future__ import annotations

from engine.messages import Divergence, RequestState, StateChanged

SHOWN_CHARS = 40  # of a token; most have fewer than ten
ROLES = {"system": "system", "user": "yours", "assistant": "reply"}


def short_words(event: StateChanged) -> str:
    """Beside a title, where there is room for two or three words."""
    if event.state is RequestState.WAITING and event.place:
        return "Next in line" if event.place == 1 else f"{ordinal(event.place)} in line"
    if event.state is RequestState.READING and event.total_tokens:
        return f"Reading {100 * event.done_tokens // event.total_tokens} %"
    return "Paused" if event.state is RequestState.PAUSED else ""


def state_sentence(event: StateChanged, has_text: bool = False) -> str:
    """What the request does; of a pause only why, because how long it lasts goes on changing.
    `has_text`: something was written already, so that what is read now is read again."""
    if event.state is RequestState.WAITING:
        if not event.place:
            return "Waiting"
        place = "next" if event.place == 1 else ordinal(event.place)
        return f"Waiting, {place} in line"
    if event.state is RequestState.READING and event.total_tokens:
        what = "Reading the chat again" if has_text else "Reading the prompt"
        return f"{what}: {event.done_tokens:,} of {event.total_tokens:,} tokens"
    return event.reason if event.state is RequestState.PAUSED else ""


def paused_sentence(reason: str, seconds: float) -> str:
    """ "Paused 12 s: the pool is full; …"."""
    words = f"Paused {duration(seconds)}"
    return f"{words}: {_continued(reason)}" if reason else words


def _continued(sentence: str) -> str:
    """As it stands after a colon; a name or an abbreviation keeps its capital."""
    first = sentence.split(" ", 1)[0]
    is_plain = first in ("The", "A", "An", "Its", "There", "Other", "No")
    return sentence[0].lower() + sentence[1:] if is_plain else sentence


def duration(seconds: float) -> str:
    """ "12 s", "2 min 5 s", "1 h 10 min"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def reused_words(num_reused: int, num_prompt: int) -> str:
    noun = "token" if num_prompt == 1 else "tokens"
    return f"{num_reused:,} of {num_prompt:,} prompt {noun} reused"


def difference_words(divergence: Divergence, roles: tuple[str, ...]) -> str:
    """Where a prompt leaves what the pool holds. `roles` are those of the prompt's messages."""
    number = divergence.message
    if number is None:
        place = "the chat template"
    else:
        role = ROLES.get(roles[number]) if number < len(roles) else None
        place = f"message {number + 1}" + (f" ({role})" if role else "")
    return f"first difference: {_token_words(divergence.text)} in {place}"


def _token_words(text: str) -> str:
    """A token as people can read it: many are spaces, line ends or a part of a character."""
    if not text:
        return "a control token"
    if not text.strip():
        return "a line break" if "\n" in text or "\r" in text else "a space"
    if not text.strip("\ufffd "):
        return "a part of a character"
    shown = "".join(one if one.isprintable() else " " for one in text).strip()
    if not shown:
        return "an invisible character"
    return f"“{shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + '…'}”"

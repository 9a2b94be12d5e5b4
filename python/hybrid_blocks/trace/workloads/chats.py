"""Conversations of people: histories that grow by messages and answers."""

from dataclasses import dataclass

from hybrid_blocks.trace.workloads.draw import Draw, LogNormal
from hybrid_blocks.trace.workloads.schedule import Schedule
from hybrid_blocks.trace.workloads.sessions import Prefixes, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    """A turn repeats everything before it and adds a message.

    Chat templates end a prompt with words that the history leaves out. A third of the clients leave
    the answers of earlier turns out too. The longer a conversation has been, the likelier it
    continues: ``(turns + 1) / (turns + 4)``, in every turn.
    """

    sessions_per_second: float = 1.2
    prefixes: Prefixes = Prefixes(number=10, popularity=1.1, tokens=(700.0, 0.9))
    message_tokens: LogNormal = (900.0, 1.4)
    most_message_tokens: int = 12_000
    template_tokens: int = 7
    leaves_answers_out: float = 0.33
    output_tokens: LogNormal = (250.0, 0.8)
    pause_seconds: LogNormal = (40.0, 1.1)
    most_tokens: int = 48_000

    def source(self, draw: Draw) -> "People":
        """Make the system prompts."""
        return People(self, draw)


class People(Source[Chats]):
    """Opens conversations."""

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan all turns of one conversation."""
        kind, draw = self.kind, self.draw
        history = [self.prefix()]
        answers = not draw.chance(kind.leaves_answers_out)
        last, turns = None, 0
        while last is None or draw.chance((turns + 1) / (turns + 4)):
            history = [*history, draw.tokens(kind.message_tokens, kind.most_message_tokens)]
            output = draw.tokens(kind.output_tokens)
            if last is not None and sum(count for _, count in history) > kind.most_tokens:
                return
            last = schedule.add(
                [*history, draw.builder.fresh(kind.template_tokens), output],
                session=session,
                time=time,
                leader=last,
                pause=draw.seconds(kind.pause_seconds),
            )
            history = [*history, output] if answers else history
            turns += 1

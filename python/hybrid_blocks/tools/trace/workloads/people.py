"""People: conversations that grow by messages, and documents with questions."""

from dataclasses import dataclass

from hybrid_blocks.tools.trace.workloads.sessions import (
    Draw,
    LogNormal,
    Prefixes,
    Schedule,
    Source,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """A prompt is a preamble, a document, a question.

    The preambles belong to applications and are shared by many documents. The length of a question
    is log-uniform. The next question about a document leaves the earlier prompt 20 to 1,300 tokens
    before its end. A follow-up repeats the exchange before it, answer included. Users do not wait
    for each other: only a follow-up follows another request.
    """

    sessions_per_second: float = 0.5
    prefixes: Prefixes = Prefixes(number=5, popularity=1.0, tokens=(600.0, 0.6))
    document_tokens: LogNormal = (12_500.0, 0.55)
    most_document_tokens: int = 60_000
    asked_once: float = 0.4
    one_more_question: float = 0.6
    question_tokens: tuple[int, int] = (20, 1_300)
    follow_up: float = 0.15
    output_tokens: LogNormal = (220.0, 0.8)
    pause_seconds: LogNormal = (120.0, 1.2)

    def source(self, draw: Draw) -> "Library":
        """Make the preambles."""
        return Library(self, draw)


class Library(Source[Documents]):
    """Opens documents."""

    def open(self, schedule: Schedule, session: int, time: float) -> None:
        """Plan all questions about one document."""
        kind, draw = self.kind, self.draw
        document = [self.prefix(), draw.tokens(kind.document_tokens, kind.most_document_tokens)]
        more = not draw.chance(kind.asked_once)
        last = None
        while True:
            follows = last is not None and draw.chance(kind.follow_up)
            before = last.spans if last is not None and follows else document
            question = draw.tokens_between(*kind.question_tokens)
            last = schedule.add(
                [*before, question, draw.tokens(kind.output_tokens)],
                session=session,
                time=time,
                leader=last if follows else None,
                pause=draw.seconds(kind.pause_seconds),
            )
            if not more:
                return
            time = last.time + draw.seconds(kind.pause_seconds)
            more = draw.chance(kind.one_more_question)

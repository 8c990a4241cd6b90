"""The history of one session as a forest of states: what was said, where it forked, what can be trained on."""

from collections.abc import Iterator, Sequence

from local_relax.canonical import digest
from local_relax.errors import AgentExecutionError
from local_relax.validation import ChatRequest, Message


def states(request: ChatRequest) -> list[str]:
    """The state after each prefix of the conversation; the first is the state before any message.

    A state is chained from the one before it: the same identity as hashing messages, tools and template
    arguments as a whole, but every prefix costs only its own message.
    """
    chain = [digest(request.tools, request.template_kwargs)]
    for message in request.messages:
        chain.append(digest(chain[-1], message))
    return chain


class Node:
    """A state that was reached. `response` tells a state the model wrote from one the agent appended."""

    def __init__(self, state: str, parent: "Node | None", *, response: bool) -> None:
        self.state = state
        self.parent = parent
        self.response = response

    def lineage(self) -> "Iterator[Node]":
        """This node and its ancestors."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class Forest:
    """All states of one session. Not thread-safe: the session table guards it with its own lock."""

    def __init__(self) -> None:
        self._newest: dict[str, Node] = {}
        self._responses: list[Node] = []

    def attach(self, chain: Sequence[str]) -> Node:
        """The node a request asks to continue: a known state, or a new one below the longest known prefix."""
        known = (self._newest[state] for state in reversed(chain) if state in self._newest)
        base = next(known, None)
        if base is not None and base.state == chain[-1]:
            return base
        return self._add(Node(chain[-1], base, response=False))

    def commit(self, parent: Node, message: Message) -> None:
        """Add the model's answer. A second answer to the same state is a sibling, even word for word the same."""
        self._responses.append(self._add(Node(digest(parent.state, message), parent, response=True)))

    def check_implicit_export(self) -> None:
        """Raises `AgentExecutionError` unless the whole session is one line of answers."""
        answered = {node for leaf in self._responses for node in leaf.lineage() if node is not leaf}
        leaves = [node for node in self._responses if node not in answered]
        if not leaves:
            raise AgentExecutionError("not finalizable: the session has no committed response")
        if len(leaves) > 1:
            raise AgentExecutionError(
                f"not finalizable: {len(leaves)} leaves with a response; a repeated request, an edited message"
                " or a changed tool list forked the history"
            )

    def check_explicit_export(self, name: str, request: ChatRequest) -> None:
        """Raises `AgentExecutionError` unless the session reached the record's conversation with a response."""
        node = self._newest.get(states(request)[-1])
        if node is None or not any(ancestor.response for ancestor in node.lineage()):
            raise AgentExecutionError(f"not finalizable: record {name!r} matches no committed state")

    def _add(self, node: Node) -> Node:
        self._newest[node.state] = node
        return node

"""What happens, told as it happens: the change stream, fanned out to everybody who watches.

    async with live.listen(Interest(types=("execution.*",))) as told:
        news = await told.next(timeout=15)

One pump a process reads the stream while anybody listens, and rests otherwise. Whoever is slow loses the oldest and is told so; nobody can
make it grow.
"""

from timeball.live.hub import Live
from timeball.live.listeners import MOST_WAITING, Listener, News, TopicListener
from timeball.store.interface import Changes

__all__ = ["MOST_WAITING", "Changes", "Listener", "Live", "News", "TopicListener"]

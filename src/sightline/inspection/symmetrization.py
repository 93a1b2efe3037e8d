"""Two alignments of the same sentences, made in both directions, into one (Och & Ney 2003, §3.3; Koehn et al. 2003).

Each takes both as links (source word, target word), the second one's turned round already.
"""

from __future__ import annotations

from collections.abc import Callable

Link = tuple[int, int]
Links = frozenset[Link]
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, backward: Links) -> Links:
    """What both say: few links, mostly right."""
    return forward & backward


def union(forward: Links, backward: Links) -> Links:
    """What either says: most of the right links, and wrong ones."""
    return forward | backward


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """From what both say outwards to what either says.

    grow-diag: as long as there are any, links of either that touch one already there (diagonally too), and of whose
    words at least one has no link yet. final-and: links of either, the first one's first, of whose words neither has.
    """
    found = set(forward & backward)
    either = forward | backward
    sources, targets = {i for i, _ in found}, {j for _, j in found}

    def add(link: Link) -> None:
        found.add(link)
        sources.add(link[0])
        targets.add(link[1])

    grown = True
    while grown:
        grown = False
        for i, j in sorted(found):
            for down, across in _NEIGHBOURS:
                near = i + down, j + across
                if near in either and near not in found and (near[0] not in sources or near[1] not in targets):
                    add(near)
                    grown = True
    for links in (forward, backward):
        for i, j in sorted(links - found):
            if i not in sources and j not in targets:
                add((i, j))
    return frozenset(found)


SYMMETRIES: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag-final-and": grow_diag_final_and,
}

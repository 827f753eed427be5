"""Prints when local dates begin around each change of each time zone's clocks from 2020 to 2040.

A line is a zone, a date (days since 1970) and the first instant of that date, in seconds since the epoch; of a
date that the zone skips, that of the next one. Dates are those from the day before a change to two days after
it. The instants come from nothing but offsets: a zone's time is cut into pieces of one offset, and a date begins
in the first piece that has any of it.
"""

import sys
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import zoneinfo

zoneinfo.reset_tzpath(())  # none but the package tzdata

DAY = 86400
FIRST = int(datetime(2020, 1, 1, tzinfo=timezone.utc).timestamp())
LAST = int(datetime(2041, 1, 1, tzinfo=timezone.utc).timestamp())


def offset(zone, at):
    """Seconds that the zone's clocks are ahead of UTC."""
    return int(datetime.fromtimestamp(at, zone).utcoffset().total_seconds())


def changes(zone):
    """Each instant from which on the offset is another one."""
    found, before = [], offset(zone, FIRST)
    for at in range(FIRST, LAST, DAY):
        low, high = at, at + DAY
        after = offset(zone, high)
        while before != after and high - low > 1:
            middle = (low + high) // 2
            if offset(zone, middle) == before:
                low = middle
            else:
                high = middle
        if before != after:
            found.append(high)
        before = after
    return found


def begins(zone, edges, date):
    """The first instant of the date with this number, or of the next that there is."""
    around = date * DAY
    cuts = [around - 2 * DAY]
    cuts += [edge for edge in edges if around - 2 * DAY < edge < around + 3 * DAY]
    cuts.append(around + 3 * DAY)
    pieces = [(start, end, offset(zone, start)) for start, end in zip(cuts, cuts[1:])]
    while True:
        firsts = []
        for start, end, ahead in pieces:
            first = max(start, date * DAY - ahead)
            if first < min(end, (date + 1) * DAY - ahead):
                firsts.append(first)
        if firsts:
            return min(firsts)
        date += 1


def dates_around(zone):
    """The numbers of the dates around each change, and the first instant of each."""
    edges = changes(zone)
    # So that a zone without changes is looked up too.
    dates = {FIRST // DAY + 200}
    for edge in edges:
        local = (edge + offset(zone, edge - 1)) // DAY
        dates.update(range(local - 1, local + 3))
    return [(date, begins(zone, edges, date)) for date in sorted(dates)]


def main():
    known = {}  # many names are of one zone
    for name in sorted(zoneinfo.available_timezones()):
        data = Path(sys.argv[1], "tzdata", "zoneinfo", name).read_bytes()
        if data not in known:
            known[data] = dates_around(zoneinfo.ZoneInfo(name))
        for date, first in known[data]:
            print(name, date, first)


main()

-- The current limit is `l`, the i-th of its form.

key = KEYS[k + i - 1]
kind, generation, cost, limit, x, y = l.kind, l.generation, l.cost, l.limit, l.x, l.y
used, past, time = l.used, l.past, l.time
keep, ttl, known, unit_known = l.keep, l.ttl, l.known, l.unit_known

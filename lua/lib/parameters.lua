-- Reads numbers that only some limits have from the arguments.

-- Sets the edges of calendar window l from ARGV[at] on; returns the position after.
local function calendar(l, at)
  l.debit_serial, l.edges = ARGV[at] + 0, {}
  for i = 1, 5 do
    l.edges[i] = ARGV[at + i] + 0
  end
  return at + 6
end

-- Added to the kind of an adaptive limit on requests in flight.
local ADAPTIVE = 1024

-- As calendar, where the rule of an adaptive limit is, whose l.limit is the most slots: the slots that it starts with,
-- the fewest, the latency (ms) and the share (per mille). They stay there, because a table would cost each free.
local function adaptive_rule(l, at)
  l.adaptive = at
  return at + 4
end

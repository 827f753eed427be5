-- Reads the edges of a calendar window from the arguments.

-- Sets the edges of limit l from ARGV[at] on; returns the position after.
local function calendar(l, at)
  l.debit_serial, l.edges = ARGV[at] + 0, {}
  for i = 1, 5 do
    l.edges[i] = ARGV[at + i] + 0
  end
  return at + 6
end

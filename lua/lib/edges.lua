-- The edges of a calendar window, as the scripts' arguments have them.

-- Sets those of limit l from ARGV[at] on; returns where they end.
local function calendar(l, at)
  l.debit_serial, l.edges = ARGV[at] + 0, {}
  for i = 1, 5 do
    l.edges[i] = ARGV[at + i] + 0
  end
  return at + 6
end

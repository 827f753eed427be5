-- The proxies that lease from one limit l: a character for each, in l.marks or, if not there, in
-- l.marks_before. Twin of `marks` in crates/algorithms/src/lease.rs.

local FIRST_MARK = 59 -- ';'

-- Marks the proxy of a call, and estimates how many there are: if there are many, some share a mark.
local function see(l)
  local mark = string.char(FIRST_MARK + l.lease.proxy)
  if not string.find(l.marks, mark, 1, true) then
    l.marks = l.marks .. mark
    local at = string.find(l.marks_before, mark, 1, true)
    if at then
      l.marks_before = string.sub(l.marks_before, 1, at - 1) .. string.sub(l.marks_before, at + 1)
    end
  end
  local marks = #l.marks + #l.marks_before
  return marks + math.floor(marks * marks / (128 - marks))
end

-- How an adaptive limit on requests in flight follows its service. Twin of crates/algorithms/src/adaptive.rs.
--
-- Included by concurrency.lua where slots of such a limit were freed. Defines adapt, which is all in one, with its
-- numbers in locals, because a call costs as much as it allocates.

-- Slots were freed; `paces` has of each how many were in use, itself included, and what its request had: an answer in
-- time, 1, late, 2, or slow, 3; or none that counts, 0 or less. Sets the limit and returns its next mark; nil if none
-- of them counts.
local function adapt(s, paces)
  local COUNTED, LEARNED = '<I1I4I4I2dI4I4I4I4c20', '<I2I2dI4I2I2' -- what each free changes, and the rest
  local rule, max = s.adaptive, s.limit * 1000
  local min, latency, share = ARGV[rule + 1] * 1000, ARGV[rule + 2] + 0, ARGV[rule + 3] + 0
  local mark, limit, of_latency, of_share, start, answers, late, slow, most, rest
  if s.found then
    mark, limit, of_latency, of_share, start, answers, late, slow, most, rest = struct.unpack(COUNTED, s.found)
    mark = start >= 0 and start < 2 ^ 53 and start % 1 == 0 -- else it is damaged
  end
  if not mark then
    limit, of_latency, of_share, start, rest = ARGV[rule] * 1000, latency, share, now, string.rep('\0', 20)
    answers, late, slow, most = 0, 0, 0, 0
  end
  local edited = of_latency ~= latency or of_share ~= share
  if edited then
    rest = '\0\0\0\0' .. string.sub(rest, 5) -- the service's own shares
  end
  if edited or start > now + latency then -- or the clock stepped back
    start, answers, late, slow, most = now, 0, 0, 0, 0
  elseif now < start then
    return nil -- admitted before the limit changed
  end
  limit = limit < min and min or limit > max and max or limit
  for i = 1, #paces, 2 do
    local used, pace = paces[i], paces[i + 1]
    most = most < used and used or most
    if pace > 0 and answers < 1000000000 then
      answers = answers + 1
      late = pace > 1 and late + 1 or late
      slow = pace > 2 and slow + 1 or slow
    end
    local age = now - start
    if age >= 1000 and answers >= 20 then
      local before = limit
      local own_late, own_slow, moved, from, moved_late, moved_slow = struct.unpack(LEARNED, rest)
      local was_late, was_slow = math.floor(late * 1000 / answers), math.floor(slow * 1000 / answers)
      local alone = before == min or most * 1000 <= min
      if not alone then
        own_late = own_late - math.ceil(math.max(0, own_late - was_late) / 16)
        own_slow = own_slow - math.ceil(math.max(0, own_slow - was_slow) / 16)
      elseif was_slow > 500 then -- it fails
        own_late, own_slow = 0, 0
      else
        own_late = math.floor((own_late + was_late + 1) / 2)
        own_slow = math.floor((own_slow + was_slow + 1) / 2)
      end
      own_late = math.min(own_late, 500)
      local allowed, over = own_slow + 1000 - share, math.max(0, was_late - own_late)
      if was_slow > allowed and over > 250 and not alone then
        limit = math.floor(math.min(before, most * 1000) * (2000 - was_slow) / 2000)
      elseif was_slow <= allowed and over <= 250 and most * 10 >= math.floor(before / 1000) * 9 then
        local part = over <= 62 and 4 or over <= 125 and 8 or 20
        limit = before + math.max(1000, math.floor(before / part))
      end
      limit = math.max(min, math.min(limit, max))
      start, answers, late, slow, most = now, 0, 0, 0, 0
      if limit ~= before then
        start, moved, from, moved_late, moved_slow = now + latency, now, before, was_late, was_slow
      end
      rest = struct.pack(LEARNED, own_late, own_slow, moved, from, moved_late, moved_slow)
      if start > now then
        break -- the others were admitted before the change, too
      end
    elseif age >= 60000 then
      start, answers, late, slow, most = now, 0, 0, 0, 0
    end
  end
  s.milli = limit
  return struct.pack(COUNTED, 97, limit, latency, share, start, answers, late, slow, most, rest)
end

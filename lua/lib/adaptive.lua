-- How an adaptive limit on requests in flight follows its service. Twin of crates/algorithms/src/adaptive.rs.
--
-- Included by concurrency.lua where a slot of such a limit is freed. Defines adapt, which is all in one, with its
-- numbers in locals, because a call costs as much as it allocates.

-- A slot is freed, whose request had an answer: 1 in time, 2 late, 3 slow; or none that counts, 0 or less. `text` is
-- the mark of before, if there is one; returns the next.
local function adapt(s, text, pace)
  local rule = s.adaptive
  local latency, share = rule[4], rule[5]
  local mark, limit, of_latency, of_share, start, answers, late, slow, most, own_late, own_slow, moved, from,
    moved_late, moved_slow = read_mark(text)
  if not mark then
    limit, of_latency, of_share, start = rule[1], latency, share, now
    answers, late, slow, most, own_late, own_slow = 0, 0, 0, 0, 0, 0
    moved, from, moved_late, moved_slow = 0, 0, 0, 0
  end
  local again = of_latency ~= latency or of_share ~= share
  if again then
    own_late, own_slow = 0, 0
  elseif now < start then
    if start <= now + latency then
      return text -- admitted before the limit changed
    end
    again = true -- the clock stepped back
  end
  if again then
    start, answers, late, slow, most = now, 0, 0, 0, 0
  end
  limit = limit < rule[2] and rule[2] or limit > rule[3] and rule[3] or limit
  most = most < s.used and s.used or most
  if pace > 0 and answers < 1000000000 then
    answers = answers + 1
    late = pace > 1 and late + 1 or late
    slow = pace > 2 and slow + 1 or slow
  end
  local age = now - start
  if age >= 1000 and answers >= 20 then
    local before, min, max = limit, rule[2], rule[3]
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
  elseif age >= 60000 then
    start, answers, late, slow, most = now, 0, 0, 0, 0
  end
  s.milli = limit
  return struct.pack(PACKED, 97, limit, latency, share, start, answers, late, slow, most, own_late, own_slow, moved,
    from, moved_late, moved_slow)
end

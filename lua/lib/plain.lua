-- The short path: decides checks of plain limits, up to the first one that finds a state that is not plain.
-- Needs integers.lua and of check.lua `now`, `call`, `injected`, `numbers`, `unpacked`, `reply` and the constants.
--
-- A plain limit is a token bucket, a GCRA, a fixed window or a sliding window counter that is charged, without
-- a lease or a debit. A plain state is absent, or one that this very limit would have written: of no later
-- generation, in the same unit, not too far ahead of the clock. Nearly all checks are plain. The rest of
-- check.lua can decide any check, and decides these alike, but it first creates some thirty functions, which
-- takes Redis longer than the decision. This path creates none: the included files are parts of one loop.
--
-- A call costs as much as it allocates: strings, tables, table fields. So the numbers of the current limit
-- are locals. Only if a call has several forms, or a form several limits, they come from tables: a form is
-- { count, its limits }.

-- The current limit: kind, generation, cost, limit, x and y as in check.lua, and
local kind, generation, cost, limit, x, y
local key -- of its bucket
local used -- debt in parts, or units of a window
local past -- units of the window before, of a sliding window counter
local time -- ms, of a bucket the time of `used`, of a window its start
local keep -- whether the next check uses the same bucket, so that it is written after that
local ttl -- the time to live of a state that is not written yet, ms; else nil
local known, unit_known -- the generation and the unit, as text in states

local TWO_MORE = LONG and ':%d:%d' or ':%.0f:%.0f'
local forms, plain = nil, true
local size -- how many limits the current form has
for number = 1, form_count do
  local flags
  flags, size, place = unpacked('<dd', numbers, place)
  plain = flags == 0
  if form_count > 1 or size ~= 1 then
    forms = forms or {}
    forms[number] = { size }
  end
  for i = 2, plain and size + 1 or 0 do
    local debit, z
    kind, generation, cost, debit, limit, x, y, z, place = unpacked('<dddddddd', numbers, place)
    plain = (kind <= 5 and kind ~= 3 or kind == 9) and cost > 0 and debit == 0
    if not plain then
      break
    end
    if forms then
      forms[number][i] = { kind = kind, generation = generation, cost = cost, limit = limit, x = x, y = y }
    end
  end
  if not plain then
    break
  end
end

local k, bytes = 1, #numbers -- the first key of the next check; `place`: where that is in `numbers`
local KEYS, pcall, match, format = KEYS, redis.pcall, string.match, string.format
local form, coming = nil, nil
if plain and forms and place <= bytes then
  coming = forms[unpacked('<d', numbers, place)]
end

while plain and place <= bytes do
  local again, allowed = true, true
  place = place + 8
  if forms then
    form = coming
    size, coming = form[1], place <= bytes and forms[unpacked('<d', numbers, place)]
    again = coming == form
  end
  for i = 1, size do
    local l = form and form[i + 1]
    if l then
      -- include: lib/plain_limit.lua
    else
      key = KEYS[k]
    end
    if plain and not keep then
      -- include: lib/plain_read.lua
      if l then
        l.used, l.past, l.time, l.known, l.unit_known = used, past, time, known, unit_known
      end
    end
    if not plain then
      break
    end
    if kind < 4 then
      allowed = allowed and cost * x <= limit * x - used
    elseif kind < 9 then
      allowed = allowed and cost <= limit - used
    else
      allowed = allowed and cost <= limit - used - scale_up(time + x - now, past, x)
    end
  end
  if plain then
    filled = filled + 1
    reply[filled] = allowed and CHARGED or DENIED
  end
  for i = 1, size do
    local l = size > 1 and form[i + 1]
    if l then
      -- include: lib/plain_limit.lua
    end
    if plain then
      -- include: lib/plain_answer.lua
    end
    if ttl and not (plain and keep) then
      -- include: lib/plain_write.lua
    end
    if form then
      l = form[i + 1]
      l.used, l.ttl, l.keep, l.known, l.unit_known = used, ttl, keep, known, unit_known
    end
  end
  if plain then
    k = k + size
  else
    place = place - 8
  end
end

-- The short path: decides checks of plain limits, up to the first one that finds a state that is not plain.
-- Needs integers.lua and of check.lua `now`, `call`, `injected`, `reply`, `filled` and the constants.
--
-- A plain limit is a token bucket, a GCRA, a fixed window or a sliding window counter that is charged, without
-- a lease or a debit. A plain state is absent, or one that this very limit would have written: of no later
-- generation, in the same unit, not too far ahead of the clock. Nearly all checks are plain. The rest of
-- check.lua decides every check, and these in the same way, but makes some thirty functions for it, which
-- takes Redis longer than the decision. Here nothing is a function: the files included are parts of one loop.
--
-- A form is { count, its limits }; a limit l has kind, generation, cost, limit, x and y as in check.lua, and
--   used  debt in parts, or units of a window
--   past  units of the window before, of a sliding window counter
--   at    ms, of a bucket the time of `used`, of a window its start
--   keep  whether the next check uses the same bucket, so that it is written after that
--   px    the time to live of what is not written yet, ms; else false

local k, at = 1, 3 -- the next check: its first key, and its place in ARGV
local forms, plain = {}, true

for number = 1, ARGV[2] + 0 do
  local form = { ARGV[at + 1] + 0 }
  plain = plain and ARGV[at] == '0'
  at = at + 2
  for i = 2, plain and form[1] + 1 or 0 do
    local kind, cost = ARGV[at] + 0, ARGV[at + 2] + 0
    plain = plain and (kind <= 5 and kind ~= 3 or kind == 9) and cost > 0 and ARGV[at + 3] == '0'
    if not plain then
      break
    end
    form[i] = {
      kind = kind,
      generation = ARGV[at + 1] + 0,
      cost = cost,
      limit = ARGV[at + 4] + 0,
      x = ARGV[at + 5] + 0,
      y = ARGV[at + 6] + 0,
      used = 0,
      past = 0,
      at = 0,
      px = false,
      keep = false,
    }
    at = at + NUMBERS_PER_LIMIT
  end
  forms[number] = form
end

while plain and ARGV[at] do
  local form, again = forms[ARGV[at] + 0], ARGV[at + 1] == ARGV[at]
  local limits, allowed = form[1], true
  for i = 1, limits do
    local l = form[i + 1]
    if plain and not l.keep then
      -- include: lib/plain_read.lua
    end
    local kind, used, cost = l.kind, l.used, l.cost
    if kind < 4 then
      allowed = allowed and cost * l.x <= l.limit * l.x - used
    elseif kind < 9 then
      allowed = allowed and cost <= l.limit - used
    else
      allowed = allowed and cost <= l.limit - used - scale_up(l.at + l.x - now, l.past, l.x)
    end
  end
  if plain then
    filled = filled + 1
    reply[filled] = allowed and CHARGED or DENIED
  end
  for i = 1, limits do
    local l = form[i + 1]
    if plain then
      -- include: lib/plain_answer.lua
    end
    if l.px and not (plain and l.keep) then
      -- include: lib/plain_write.lua
    end
  end
  if plain then
    k, at = k + limits, at + 1
  end
end

-- Reads the bucket of limit `l` of the check at hand, or finds that its state is not plain.

local text, kind, x, y = redis.pcall('GET', KEYS[k + i - 1]), l.kind, l.x, l.y
local time, used, past = now, 0, 0
if type(text) == 'string' then
  local generation, stored, units, unit, before, wanted
  if kind == 1 then
    generation, units, stored, unit = string.match(text, '^b(%d+):(%d+):(%d+):(%d+)$')
    wanted = x
  elseif kind == 2 then
    generation, stored = string.match(text, '^g(%d+):(%d+)$')
    units, unit, wanted = 0, y, y
    if not generation then
      generation, stored, units, unit = string.match(text, '^g(%d+):(%d+):(%d+):(%d+)$')
      plain = generation and units + 0 < y
    end
  elseif kind < 9 then
    generation, stored, units = string.match(text, '^f(%d+):(%d+):(%d+)$')
    unit, wanted = 1, 1
  else
    generation, stored, units, before, unit = string.match(text, '^w(%d+):(%d+):(%d+):(%d+):(%d+)$')
    wanted = x
  end
  if plain and generation and unit + 0 == wanted then
    generation, stored, units, before = generation + 0, stored + 0, units + 0, (before or 0) + 0
    local ahead = stored - now
    plain = generation <= l.generation and generation + stored + units + before < 2 ^ 53
    if kind < 4 then
      local full = l.limit * x
      plain = plain and units <= full and ahead <= math.floor(full / y)
      if kind == 2 then
        if ahead >= 0 then
          used = ahead * y + units
          plain = plain and used <= full
        end
      elseif ahead >= 0 then
        used, time = units, stored
      elseif -ahead < math.ceil(units / y) then
        used = units + ahead * y
      end
    elseif kind == 9 then
      plain = plain and ahead <= 0
      time = now - now % x
      if stored >= time then
        used, past = units, before
      elseif stored + x >= time then
        past = units
      end
    else
      plain = plain and ahead <= x
      if ahead > 0 or kind == 5 and -ahead < x then
        time = stored
      end
      if kind == 4 then
        time = time - time % x
      end
      if stored >= time then
        used = units
      end
    end
  else
    plain = false
  end
elseif text then
  plain = false -- another type of key, or a right that is missing
elseif kind == 4 or kind == 9 then
  time = now - now % x
end
l.used, l.past, l.at = used, past, time

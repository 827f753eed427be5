-- Reads the bucket of the current limit; clears `plain` if its state is not.

local text = pcall('GET', key)
used, past, time = 0, 0, now
if not text then
  if kind == 4 or kind == 9 then
    time = now - now % x
  end
elseif #text == 0 then
  plain = false -- an error, a table without items: another type, or no permission
else
  local found, stored, units, unit, before = nil, nil, 0, nil, 0
  if kind == 1 then
    found, units, stored, unit = match(text, '^b(%d+):(%d+):(%d+):(%d+)$')
  elseif kind == 2 then
    found, stored = match(text, '^g(%d+):(%d+)$')
    if not found then
      found, stored, units, unit = match(text, '^g(%d+):(%d+):(%d+):(%d+)$')
      plain = found and unit + 0 == y and units + 0 < y
      unit = nil
    end
  elseif kind < 9 then
    found, stored, units = match(text, '^f(%d+):(%d+):(%d+)$')
  else
    found, stored, units, before, unit = match(text, '^w(%d+):(%d+):(%d+):(%d+):(%d+)$')
  end
  plain = plain and found
  if plain and (found ~= known or unit ~= unit_known) then
    local number = found + 0
    plain = number <= generation and (not unit or unit + 0 == x)
    if number == generation then
      known, unit_known = found, unit
    end
  end
  if plain then
    stored, units, before = stored + 0, units + 0, before + 0
    local ahead = stored - now
    plain = units + before < 2 ^ 53
    if kind < 4 then
      local full = limit * x
      plain = plain and units <= full and ahead <= full / y
      if kind == 2 then
        if ahead >= 0 then
          used = ahead * y + units
          plain = plain and used <= full
        end
      elseif ahead >= 0 then
        used, time = units, stored
      else
        used = units + ahead * y
        if used < 0 then
          used = 0
        end
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
  end
end

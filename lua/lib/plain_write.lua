-- Writes the bucket of limit `l` of the check at hand.

local kind, used, y, text = l.kind, l.used, l.y, nil
if kind == 1 then
  text = string.format('b' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE, l.generation, used, l.at, l.x)
elseif kind == 2 then
  local parts = used % y
  text = parts > 0 and 'g' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE or 'g' .. WHOLE .. ':' .. WHOLE
  text = string.format(text, l.generation, now + (used - parts) / y, parts, y)
elseif kind < 9 then
  text = string.format('f' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE, l.generation, l.at, used)
else
  text = 'w' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE
  text = string.format(text, l.generation, l.at, used, l.past, l.x)
end
call('SET', KEYS[k + i - 1], text, 'PX', l.px)
l.px = false

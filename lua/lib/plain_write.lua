-- Writes the bucket of the current limit.

if not known then
  known = format(WHOLE, generation)
  unit_known = (kind == 1 or kind == 9) and format(WHOLE, x) or nil
end
local text
if kind == 1 then
  text = 'b' .. known .. format(TWO_MORE, used, time) .. ':' .. unit_known
elseif kind == 2 then
  local parts = used % y
  local whole = now + (used - parts) / y
  if parts > 0 then
    text = 'g' .. known .. format(TWO_MORE, whole, parts) .. ':' .. format(WHOLE, y)
  else
    text = 'g' .. known .. ':' .. format(WHOLE, whole)
  end
elseif kind < 9 then
  text = 'f' .. known .. format(TWO_MORE, time, used)
else
  text = 'w' .. known .. format(TWO_MORE, time, used) .. ':' .. format(WHOLE, past) .. ':' .. unit_known
end
call('SET', key, text, 'PX', format(WHOLE, ttl)) -- Redis takes longer to write a number
ttl = nil

-- Charges limit `l` of the check at hand if that is allowed, and answers for it.

local kind, limit, x, y, cost, time, past = l.kind, l.limit, l.x, l.y, l.cost, l.at, l.past
local used, room, reset = l.used, nil, 0
if kind < 4 then
  used = allowed and used + cost * x or used
  local left = limit * x - used
  room = (left - left % x) / x
  reset = used == 0 and 0 or time - now + math.ceil(used / y)
else
  used = allowed and used + cost or used
  room = limit - used
  if past > 0 then
    room = room - scale_up(time + x - now, past, x)
    reset = time + x - now
  end
  room = room > 0 and room or 0
  if used > 0 then
    reset = time + (kind == 9 and 2 * x or x) - now
  end
end
l.keep = again and KEYS[k + limits + i - 1] == KEYS[k + i - 1]
if allowed then
  l.used, l.px = used, injected and TTL_INJECTED_MS or reset + TTL_MARGIN_MS
  reply[filled + 1], reply[filled + 2] = room, reset
  filled = filled + 2
else
  local fits, retry = cost <= room, 0
  if cost > limit then
    retry = -1
  elseif not fits then
    local wait = time - now
    if kind < 4 then
      wait = wait + math.ceil((used + (cost - limit) * x) / y)
    elseif kind < 9 then
      wait = wait + x
    else
      -- The window before must weigh little enough; or, if this one is too full, this one in the next.
      local left, weighed = limit - cost - used, past
      if left < 0 then
        left, weighed, wait = limit - cost, used, wait + x
      end
      if weighed > 0 then
        wait = wait + math.max(0, x - math.floor(left * x / weighed))
      end
    end
    retry = math.max(1, wait)
  end
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = fits and 1 or 0, 0, room
  reply[filled + 4], reply[filled + 5], reply[filled + 6] = retry, reset, 0
  filled = filled + 6
end

-- Charges the current limit if the check is allowed, and adds its reply.

local room, reset = nil, 0
if kind < 4 then
  if allowed then
    used = used + cost * x
  end
  local left = limit * x - used
  room = (left - left % x) / x
  if used > 0 then
    reset = time - now + (used + -used % y) / y
  end
else
  if allowed then
    used = used + cost
  end
  room = limit - used
  if past > 0 then
    room = room - scale_up(time + x - now, past, x)
    reset = time + x - now
  end
  if room < 0 then
    room = 0
  end
  if used > 0 then
    reset = time + (kind == 9 and 2 * x or x) - now
  end
end
keep = again and KEYS[k + size + i - 1] == key
if allowed then
  ttl = injected and TTL_INJECTED_MS
    or reset + TTL_MARGIN_MS + (reset < SPREAD_MAX_MS and reset or SPREAD_MAX_MS) * spread
  ttl = ttl - ttl % 1
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
      -- Until the window before weighs little enough; if this is too full, until it does in the next.
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

-- What is granted of a window's counts, and what of it is accounted for. Twin of crates/algorithms/src/granted.rs.
-- Included by lease_window.lua and sliding_window_buckets.lua, which say what it needs.

-- include: lib/marks.lua

local SHARES = 8 -- the smaller the last grants, the less is at one proxy that another lacks

function M.settle(w)
  local changed = false
  for i = 1, #w.lease.settle, 3 do
    local slot = named(w, w.lease.settle[i])
    if slot and w[slot] > 0 then
      local left = math.max(0, w[slot] - w.lease.settle[i + 1])
      local returned = math.min(left, w.lease.settle[i + 2])
      changed = changed or left - returned < w[slot]
      w[slot] = left - returned
      if returned > 0 then
        give_back(w, slot, returned)
      end
    end
  end
  return changed
end

-- Returns units, epoch, ttl: what is wanted, up to a fair part of the room, to be used before the
-- count ends. A millisecond less, because the clock that was read had not its fraction.
function M.grant(w)
  local started, left = open(w)
  local ttl = math.min(w.lease.ttl, left - 1)
  -- Sub-windows before the epoch have no name to settle by.
  if w.lease.want == 0 or ttl <= 0 or started < 0 then
    return 0, 0, 0
  end
  if roll then
    roll(w)
  end
  local proxies = see(w)
  local units = math.min(w.lease.want, math.floor(math.max(0, M.room(w)) / (SHARES * proxies)))
  if units == 0 then
    return 0, 0, 0
  end
  w.out = w.out + units
  M.charge(w, units)
  return units, started, ttl
end

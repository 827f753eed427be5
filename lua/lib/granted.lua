-- Grants of a window's counts, and their settlements. Twin of crates/algorithms/src/window.rs.
-- Included by lease_window.lua and sliding_window_buckets.lua, which define what it needs.

-- include: lib/marks.lua

local SHARES = 8 -- the smaller the last grants, the fewer units are stranded on one proxy

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

-- Grants what is wanted, up to a fair share of the room; returns units, epoch, ttl. The ttl ends a
-- millisecond before the count, because the clock is read in whole milliseconds.
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

-- Units of a window taken in advance by proxies, to be used before the window that they were
-- counted in ends. Twin of the grants and settlements in the windows' files of
-- crates/algorithms/src.
--
-- Included after a window's functions M; adds settle and grant. `held(w, epoch)` of the window
-- reads, and with a number of units sets, the count that started at `epoch` if it still counts;
-- `open(w)` says when the count of now started, and for how long it goes on.

function M.settle(w)
  local changed = false
  for i = 1, #w.lease.settle, 3 do
    local epoch = w.lease.settle[i]
    local used = held(w, epoch)
    local returned = used and math.min(used, w.lease.settle[i + 2]) or 0
    if returned > 0 then
      held(w, epoch, used - returned)
      changed = true
    end
  end
  return changed
end

-- Returns units, epoch, ttl: half of the room at most, for another proxy may need the other, and to
-- be used before the count ends. A millisecond less, because the clock that was read had not its
-- fraction.
function M.grant(w)
  local units = math.min(w.lease.want, math.floor(math.max(0, M.room(w)) / 2))
  local started, left = open(w)
  local ttl = math.min(w.lease.ttl, left - 1)
  -- Sub-windows before the epoch have no name to settle by.
  if units == 0 or ttl <= 0 or started < 0 then
    return 0, 0, 0
  end
  M.charge(w, units)
  return units, started, ttl
end

-- What token bucket, leaky bucket and GCRA share.
-- Twin of crates/algorithms/src/bucket.rs.
--
-- The table M of a bucket's functions; token_bucket.lua or gcra.lua add load and encode.
--
-- b: limit (capacity C), x (parts of a unit), y (parts that drain each ms),
--    debt (parts owed at b.at), at (ms, never before `now`)

-- The largest cost that fits.
local function room(b)
  local left = b.limit * b.x - b.debt
  return (left - left % b.x) / b.x
end

-- Adds units, at most up to the capacity; returns whether any of it fitted.
local function charge(b, units)
  local before, full = b.debt, b.limit * b.x
  local debt = units < b.limit and before + units * b.x or full
  b.debt = math.max(before, debt < full and debt or full)
  return b.debt > before
end

-- The most that a bucket owes after units were charged beyond its capacity, in capacities.
local DEBT_MAX_CAPACITIES = 100

-- Adds units; what does not fit is owed beyond the capacity, up to so many capacities.
local function overcharge(b, units)
  local before, full = b.debt, b.limit * b.x
  local debt = math.min(before + math.min(units * b.x, 2 ^ 51), full * DEBT_MAX_CAPACITIES, 2 ^ 51)
  debt = math.max(before, debt)
  b.over = b.over + math.max(0, debt - before - math.max(0, full - before))
  b.debt = debt
  return debt > before
end

local function reset_after_ms(b)
  return b.debt == 0 and 0 or b.at - now + math.ceil(b.debt / b.y)
end

local M = {
  load = false,
  encode = false,
  room = room,
  charge = charge,
  reset_after_ms = reset_after_ms,
}

-- The largest debt at which a cost within the capacity fits.
function M.target(b, cost)
  return (b.limit - cost) * b.x
end

function M.wait_ms(b, cost)
  local excess = b.debt - M.target(b, cost)
  return b.at - now + (excess > 0 and math.ceil(excess / b.y) or 0)
end

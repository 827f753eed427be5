-- Leaky bucket as a queue; as a meter it is a token bucket.
-- Twin of crates/algorithms/src/leaky_bucket.rs, which slots.lua completes.
--
-- State: a token bucket's, whose debt is the level. b.z is the longest delay in ms.

local room, wait_ms = M.room, M.wait_ms

-- How long the next request behind all others is held. By the bucket's clock, so that spacing holds
-- after a small step back of the caller's.
local function behind_ms(b)
  return math.ceil(b.debt / b.y)
end

-- Is -1 while the next request would be held too long.
function M.room(b)
  return behind_ms(b) > b.z and -1 or room(b)
end

function M.wait_ms(b, cost)
  local overdue = behind_ms(b) - b.z
  return math.max(wait_ms(b, cost), b.at - now + overdue)
end

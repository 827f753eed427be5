-- The numbers that token bucket, leaky bucket and GCRA share.
--
-- Debt is counted in parts: a unit has `p` of them and `q` drain per
-- millisecond, where q/p is the rate N/P in lowest terms.
-- Twin of crates/algorithms/src/bucket.rs.

-- b: {limit = capacity, p = parts per unit, q = parts per ms}
local bucket = {}

function bucket.full(b)
  return b.limit * b.p
end

-- The largest step back of the clock that is not taken for a wrong clock.
function bucket.horizon_ms(b)
  return floor(b.limit * b.p / b.q)
end

-- What is left of `debt` after `elapsed_ms`; the product is built only where it is small.
function bucket.drained(b, debt, elapsed_ms)
  if elapsed_ms >= ceil(debt / b.q) then
    return 0
  end
  return debt - elapsed_ms * b.q
end

-- A debt stored in other parts, rounded up to these, at most the capacity.
function bucket.adopt(b, debt, p)
  local full = b.limit * b.p
  if p ~= b.p then
    local rest = debt % p
    local units = (debt - rest) / p
    if units >= b.limit then
      return full
    end
    debt = units * b.p + scale_up(rest, b.p, p)
  end
  return debt < full and debt or full
end

-- The debt after `units` more, at most the capacity.
function bucket.owing(b, debt, units)
  local full = b.limit * b.p
  if units >= b.limit then
    return full
  end
  debt = debt + units * b.p
  return debt < full and debt or full
end

-- Whole units left.
function bucket.remaining(b, debt)
  return floor((b.limit * b.p - debt) / b.p)
end

-- How long until a cost within the capacity fits.
function bucket.wait_ms(b, debt, cost)
  local excess = debt + cost * b.p - b.limit * b.p
  return excess > 0 and ceil(excess / b.q) or 0
end

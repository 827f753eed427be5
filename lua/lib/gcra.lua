-- Generic cell rate algorithm. Twin of crates/algorithms/src/gcra.rs.
--
-- State: "g<generation>:<TAT ms>", then ":<fraction>:<parts per ms>" unless the fraction is 0. If units
-- were charged beyond the capacity, all four, then ":o<parts of them>:<ms of the latest write>".
-- The distance from now to the TAT is loaded as the debt.
--
-- b: over (those parts), latest (ms of the latest write, not before now)

local PLAIN = 'g' .. WHOLE .. ':' .. WHOLE
local WITH_FRACTION = PLAIN .. ':' .. WHOLE .. ':' .. WHOLE
local WITH_OVER = WITH_FRACTION .. ':o' .. WHOLE .. ':' .. WHOLE

local function encode(b, generation)
  local parts, over = b.debt % b.y, math.min(b.over, b.debt)
  local tat = now + (b.debt - parts) / b.y
  if over > 0 then
    return string.format(WITH_OVER, generation, tat, parts, b.y, over, b.latest)
  elseif parts > 0 then
    return string.format(WITH_FRACTION, generation, tat, parts, b.y)
  end
  return string.format(PLAIN, generation, tat)
end

-- What is left of the debt beyond the capacity, in the parts of this rate.
local function drained_over(b, over, unit, elapsed)
  local rest = over % unit
  local whole = (over - rest) / unit
  over = whole > 2 ^ 51 / b.y and 2 ^ 51 or math.min(whole * b.y + scale_up(rest, b.y, unit), 2 ^ 51)
  if elapsed <= 0 then
    return over
  end
  return elapsed < math.ceil(over / b.y) and over - elapsed * b.y or 0
end

M.load_absent = true

function M.load(b, text)
  b.over, b.latest = 0, now
  if not text then
    return
  end
  local over, latest = 0, 0
  local generation, tat, parts, unit = string.match(text, '^g(%d+):(%d+):(%d+):(%d+)$')
  if not generation then
    generation, tat = string.match(text, '^g(%d+):(%d+)$')
    parts, unit = 0, 1
    if not generation then
      generation, tat, parts, unit, over, latest = string.match(text, '^g(%d+):(%d+):(%d+):(%d+):o(%d+):(%d+)$')
      if not generation then
        return unplain(b, text, 'g')
      end
      over, latest = over + 0, latest + 0
    end
  end
  generation, tat, parts, unit = generation + 0, tat + 0, parts + 0, unit + 0
  if not sound(generation + tat, unit) or parts >= unit or not sound(over + latest, 1) then
    return CORRUPT
  end
  b.seen = generation
  local ahead, full = tat - now, b.limit * b.x
  if ahead < 0 then
    return
  end
  if over > 0 then
    over = drained_over(b, over, unit, now - latest)
    if latest - now > math.floor(full / b.y) then
      latest = now
    end
    b.latest = math.max(latest, now)
  end
  -- Whole milliseconds first: the product is computed only if it is small.
  local far = ahead > math.floor((full + over) / b.y)
  local distance = far and full + over or ahead * b.y + scale_up(parts, b.y, unit)
  over = math.min(over, distance)
  local debt = distance - over
  b.debt, b.over = math.min(math.min(debt, full) + over, 2 ^ 51), over
  if far or debt > full then
    b.shifted = encode(b, generation)
  end
end

function M.encode(b)
  return encode(b, b.generation)
end

M.overcharge = overcharge

-- Exact integers in doubles: every number stays below 2^53, and none is ever
-- formatted by tostring or `..`, which keep 14 digits.

-- How string.format writes one: as a C long, if that has 64 bits, in half the time.
local LONG = struct.size('l') == 8
local WHOLE = LONG and '%d' or '%.0f'

-- a*b/c rounded up, for 0 <= a <= c <= 2^51 and b < 2^53, however large the product.
local function scale_up(a, b, c)
  if a * b < 2 ^ 53 then
    return math.ceil(a * b / c)
  end
  local quotient, rest, bit = 0, 0, 2 ^ 52
  while bit >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if b >= bit then
      b = b - bit
      rest = rest + a
    end
    while rest >= c do
      quotient, rest = quotient + 1, rest - c
    end
    bit = bit / 2
  end
  return rest > 0 and quotient + 1 or quotient
end

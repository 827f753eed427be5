//! Rules of the whole system that can be left out one by one, in a run of the world alone: the product's code has no
//! switch for that. Each has to be found.

/// How a rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The text of a script is replaced.
    Script(&'static str, &'static str),
    /// A part of the world does not keep to it.
    Part(Rule),
}

/// A rule that the world keeps for the parts that it plays, and for calls between parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A call that may have charged is never repeated.
    NoRepeat,
    /// A proxy gets the end of each request.
    Ends,
    /// A call that gets no answer ends by its timeout.
    Timeout,
    /// Polls for limits are answered with those in force.
    Polls,
}

/// A rule in words, and how it is left out.
pub const MUTATIONS: [(&str, How); 22] = [
    (
        "a check of one bucket stores what it charged",
        How::Script(
            "call('SET', key, text, 'PX', format(WHOLE, ttl))",
            "text = false",
        ),
    ),
    (
        "a fixed window counts what was counted in it",
        How::Script(
            "      if stored >= time then\n        used = units\n      end",
            "      used = 0",
        ),
    ),
    (
        "a sliding window counts what was counted in it",
        How::Script(
            "      if stored >= time then\n        used, past = units, before",
            "      if stored >= time then\n        used, past = 0, before",
        ),
    ),
    (
        "a window log adds what it admits",
        How::Script(
            "  local added = math.min(units, math.max(0, room(w)))\n  w.added = w.added + added\n  return added > 0",
            "  return true",
        ),
    ),
    (
        "units of a lease are charged to their bucket when they are granted",
        How::Script(
            "  b.debt = b.debt + units * b.x\n  return units",
            "  return units",
        ),
    ),
    (
        "units of a lease are counted in their window when they are granted",
        How::Script(
            "  w.out = w.out + units\n  M.charge(w, units)",
            "  w.out = w.out + units",
        ),
    ),
    (
        "units of a lease that come back to a window are not charged any more",
        How::Script("      if returned > 0 then\n", "      if false then\n"),
    ),
    (
        "units of a lease that come back to a bucket are not charged any more",
        How::Script(
            "M.credit(b, take(b, epoch, b.lease.settle[i + 2]))",
            "take(b, epoch, b.lease.settle[i + 2])",
        ),
    ),
    (
        "no more units of a lease come back than are outstanding",
        How::Script(
            "M.credit(b, take(b, epoch, b.lease.settle[i + 2]))",
            "b.debt = math.max(0, b.debt - owed(b, b.lease.settle[i + 1] + b.lease.settle[i + 2]))",
        ),
    ),
    (
        "a grant takes no more than what is left",
        How::Script(
            "math.max(0, math.min(want, math.floor(M.room(b) / (2 * proxies))))",
            "want",
        ),
    ),
    (
        "no more slots are given than there are",
        How::Script(
            "  local left = s.open - s.used",
            "  local left = s.open - s.used + 1",
        ),
    ),
    (
        "a slot that is freed can be taken",
        How::Script(
            "      became[name], s.used, changed = false, s.used - 1, true",
            "      changed = true",
        ),
    ),
    (
        "a slot that is renewed is kept",
        How::Script(
            "    elseif act == RENEW or act == ENTER and (present",
            "    elseif act == ENTER and (present",
        ),
    ),
    (
        "a reservation is settled once",
        How::Script(
            "      if settled == '0' then\n        c.settled",
            "      if true then\n        c.settled",
        ),
    ),
    (
        "what a request cost less than it reserved is given back",
        How::Script(
            "local back, lowered = give_back(l, number, held_units - units, at)",
            "local back, lowered = 0, false",
        ),
    ),
    (
        "what a request cost more than it reserved is charged",
        How::Script(
            "          excess = units - held_units",
            "          excess = 0",
        ),
    ),
    (
        "an edit is listed with what it changed",
        How::Script(
            "    marks[#marks + 1], marks[#marks + 2] = revision, member",
            "    marked[member] = true",
        ),
    ),
    (
        "an edit of one limit leaves the others",
        How::Script(
            "  each_thousand(writes, function(...)\n    redis.call('HSET', limits, ...)\n  end)",
            "  redis.call('HSET', limits, writes[1], writes[2])",
        ),
    ),
    (
        "a call that may have charged is never repeated",
        How::Part(Rule::NoRepeat),
    ),
    (
        "a proxy frees what a request held when it ends",
        How::Part(Rule::Ends),
    ),
    (
        "a call without an answer ends by its timeout",
        How::Part(Rule::Timeout),
    ),
    (
        "a limiter answers a poll with the limits in force",
        How::Part(Rule::Polls),
    ),
];

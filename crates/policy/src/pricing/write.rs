//! Writes a `cost` with fields as its author would.

use documents::{Name, Node};

use super::{
    IfAbsent, MAX_COST, Pricing, RequestPlace, RequestPrice, RequestValue, Reserve, ResponsePrice,
    ResponseValue, Row, Source, Term,
};
use crate::write::patterns_node;

impl Pricing {
    /// The cost as its author would write it.
    pub fn to_node(&self) -> Node {
        match self {
            Self::Request(price) => price.to_node(),
            Self::Response(price) => price.to_node(),
        }
    }
}

type Fields = Vec<(&'static str, Node)>;

impl RequestPrice {
    fn to_node(&self) -> Node {
        let mut fields = Fields::new();
        if !self.from.is_empty() {
            fields.push(("from", one_or_list(&self.from, RequestValue::to_node)));
        }
        if !self.table.is_empty() {
            fields.push(("table", Node::list(self.table.iter().map(Row::to_node))));
        }
        fields.push(("default", Node::number(self.default)));
        Node::map(fields)
    }
}

impl Row {
    fn to_node(&self) -> Node {
        let entries = self.matchers.iter();
        let entries = entries.map(|matcher| {
            let key: &Name = &matcher.key;
            (key.as_str(), patterns_node(&matcher.patterns))
        });
        Node::map([
            ("match", Node::map(entries)),
            ("units", Node::number(self.units)),
        ])
    }
}

impl RequestValue {
    fn to_node(&self) -> Node {
        let mut fields = vec![match &self.place {
            RequestPlace::Header(name) => ("request_header", Node::text(name)),
            RequestPlace::Json(pointer) => ("request_json", Node::text(pointer.to_string())),
        }];
        if self.min > 0 {
            fields.push(("min", Node::number(self.min)));
        }
        if self.max < MAX_COST {
            fields.push(("max", Node::number(self.max)));
        }
        Node::map(fields)
    }
}

impl ResponsePrice {
    fn to_node(&self) -> Node {
        let mut fields = vec![("from", one_or_list(&self.from, Source::to_node))];
        if let [Source::Status { units, .. }] = self.from.as_slice() {
            fields.push(("units", Node::number(*units)));
        }
        fields.push(("reserve", self.reserve.to_node()));
        if let Some(units) = self.on_error.filter(|units| *units > 0) {
            fields.push(("on_error", Node::number(units)));
        }
        match self.if_absent {
            IfAbsent::Estimate if !self.has_status() => {}
            IfAbsent::Reserved if self.has_status() => {}
            IfAbsent::Estimate => fields.push(("if_absent", Node::text("estimate"))),
            IfAbsent::Reserved => fields.push(("if_absent", Node::text("reserved"))),
            IfAbsent::Max => fields.push(("if_absent", Node::text("max"))),
            IfAbsent::Units(units) => fields.push(("if_absent", Node::number(units))),
        }
        if self.has_max() {
            fields.push(("max", Node::number(self.max)));
        }
        Node::map(fields)
    }

    /// Whether the status alone decides the cost.
    pub(crate) fn has_status(&self) -> bool {
        matches!(self.from.as_slice(), [Source::Status { .. }])
    }
}

impl Reserve {
    fn to_node(&self) -> Node {
        if self.from.is_empty() && self.cap_percent == 100 {
            return Node::number(self.default);
        }
        let mut fields = Fields::new();
        if !self.from.is_empty() {
            fields.push(("from", one_or_list(&self.from, RequestValue::to_node)));
        }
        fields.push(("default", Node::number(self.default)));
        if self.cap_percent != 100 {
            fields.push(("cap", Node::text(format!("{}%", self.cap_percent))));
        }
        Node::map(fields)
    }
}

impl Source {
    fn to_node(&self) -> Node {
        match self {
            Self::Status { of, .. } => {
                let statuses = of.iter().map(|(from, to)| {
                    if from == to {
                        Node::number(u64::from(*from))
                    } else {
                        Node::text(format!("{}xx", from / 100))
                    }
                });
                Node::map([("status", Node::list(statuses))])
            }
            Self::Sum(terms) => match terms.as_slice() {
                [only] => only.to_node(),
                many => Node::map([("sum", Node::list(many.iter().map(Term::to_node)))]),
            },
        }
    }
}

impl Term {
    fn to_node(&self) -> Node {
        let texts = |keys: &[String]| Node::list(keys.iter().map(Node::text));
        let place = match &self.place {
            ResponseValue::Json(pointer) => ("response_json", Node::text(pointer.to_string())),
            ResponseValue::Header(name) => ("response_header", Node::text(name)),
            ResponseValue::Trailer(name) => ("response_trailer", Node::text(name)),
            ResponseValue::Metadata(keys) => ("metadata", texts(keys)),
        };
        let mut fields = vec![place];
        if self.weight != 1 {
            fields.push(("weight", Node::number(self.weight)));
        }
        Node::map(fields)
    }
}

fn one_or_list<T>(items: &[T], to_node: impl Fn(&T) -> Node) -> Node {
    match items {
        [only] => to_node(only),
        many => Node::list(many.iter().map(to_node)),
    }
}

package demo

import (
	"fmt"
	"math/rand/v2"
)

// Behaviour is one thing that a harness may ask for.
type Behaviour uint16

// What the siblings of recipes/pools/sql ask for.
const (
	Look    Behaviour = 1 << iota // describe the table before the first statement
	Count                         // count(*) instead of counting the rows shown
	Clean                         // compare lower(trim(name))
	Page                          // read long results with LIMIT and OFFSET
	Quote                         // backquotes around names
	Recount                       // count the matching rows before and after a change
	Repair                        // after an error: describe, then again
	Retry                         // after an error: again, by the schema that the harness shows
	Values                        // after an empty result: look at stored values, then again
	Verify                        // check before the answer
)

var all = []Behaviour{Look, Count, Clean, Page, Quote, Recount, Repair, Retry, Values, Verify}

// asked is what each harness of the shipped pool asks for; h0 asks for nothing.
var asked = map[string]Behaviour{
	"h0": 0, "look": Look, "count": Count, "clean": Clean, "page": Page, "quote": Quote, "recount": Recount,
	"repair": Repair, "steady": Repair, "retry": Retry, "values": Values, "verify": Verify,
	"look-clean": Look | Clean, "look-count": Look | Count,
}

// Asked is what a harness asks for.
func Asked(harness string) (Behaviour, error) {
	b, ok := asked[harness]
	if !ok {
		return 0, fmt.Errorf("demonstrations: nothing is scripted for harness %q", harness)
	}
	return b, nil
}

// obey draws what the script will do of what is asked, each with probability p.
func obey(asked Behaviour, p float64, rng *rand.Rand) Behaviour {
	var out Behaviour
	for _, b := range all {
		if x := rng.Float64(); asked&b != 0 && x < p {
			out |= b
		}
	}
	return out
}

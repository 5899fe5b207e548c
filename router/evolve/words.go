package evolve

import (
	"strings"
	"sync"
)

// commonWord says that a word, or what it was formed from, is everyday English or SQL: a table that holds it does not make
// it a secret.
func commonWord(w string) bool {
	words := commonWords()
	if words[w] {
		return true
	}
	for _, end := range []string{"s", "es", "ed", "d", "ing", "ly", "er", "r"} {
		if stem, ok := strings.CutSuffix(w, end); ok && len(stem) > 2 && (words[stem] || words[stem+"e"]) {
			return true
		}
	}
	return strings.HasSuffix(w, "ies") && words[strings.TrimSuffix(w, "ies")+"y"]
}

var commonWords = sync.OnceValue(func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(commonText) {
		m[w] = true
	}
	return m
})

// commonText is what instructions are written with: function words, words of tables, statements and tools, and plain nouns,
// verbs and adjectives.
const commonText = `
a an the this that these those it its they them their there here he she his her you your we our us i me my one two three four five six
seven eight nine ten hundred thousand first second third fourth fifth last next previous and or not nor but if then else when while until
unless because since so as at by for from in into of off on onto out over per to under up upon with within without about above after again
against all almost alone along already also although always am among another any anybody anyone anything apart are around aside away back
be become been before began begin behind being below beneath beside between beyond both can cannot came come could did different do does
done down during each early either end enough especially even ever every everyone everything except far few find found follow forward full
further gave get give given go goes gone good got great had half has have having help hence high how however important indeed instead is
just keep kept kind knew know known large late later least leave left less let like likely little long look lot low made main make many may
maybe mean means might mind more most much must near nearly necessary need needed neither never new no nobody none normal nothing now
nowhere often old once only open opposite other others otherwise own part particular people perhaps place plain plus point possible
probably put quick quite rather really reason right run said same saw say see seem seen several shall should show shown side similar simple
simply single small some somebody someone something sometimes soon still stop such sure take taken tell ten than thank thing think though
through thus time today together told too took toward true try turn twice type usual usually various very via want was way well went were
what whatever where whereas whether which whichever who whole whom whose why will wish word work worse would wrong yes yet zero
able absent accept access accident accord account across act action active actual add addition address adjust advance advice affect age
agree allow alter alternative amount analysis answer appear append apply approach approve area argument arrive art article ascend ask
assert assign assume attempt attention author average avoid bad balance bank bar base basic because best better big bind bit black blank
block blue board body book bool boolean boot border bottom bound box brand break bring broad brother brown budget build built bus business buy
calculate call candidate capital capitals car card care carry cascade case cast category cause caution cell center centre central century certain chain
chance change char character charge chart check child children choice choose city claim class classic clause clean clear client close club coach code
cold collate colour color column columns combine comma command comment commit committed common company compare complete complex compute concat
concern condition confirm conflict connect consider consist constant constraint contact contain content context continue control convert
copy correct cost count counter country couple course cover create cross current custom customer cut cycle daily damage dark data database date
datetime day deal death debt decide decimal decision decrease deep default define degree delete deliver demand depend depth descend describe description
design desk detail determine develop device differ difference difficult digit direct direction director discover display distance distinct district
divide division doctor document dollar door double doubt draw drive drop due duplicate duration duty ease east easy economy edge edit
education effect effective effort electric element else email employ employee empty enable ending energy engine english enter entire entry environment equal
equip error escape essential establish estimate evaluate event evidence exact exactly examine example exceed excellent exchange exclude execute exercise exist
expect expensive experience explain explicit explore express expression extend extra extract eye face fact factor fail failed failure fall false
family famous farm fast father favor favorite feature fee feel field figure file fill film filter final finally finance fine finish fire fit fix flag flat
flight float floor flow fly focus food foot force foreign forget form formal format former formula foundation frame free french frequent fresh friend
front fruit function fund future gain game garden gas gather gender general german get glass global goal gold government grade grand grant
gray green ground group grow growth guard guess guest guide hand handle happen happy hard hardly hat head health hear heart heat heavy height hello
hidden hide hint history hit hold holiday home hope horse hospital hot hotel hour house human husband idea identify identifier ignore image imagine
immediate impact implicit imply import improve inch include income increase index indicate individual industry inform information initial inner input
inquire insert inside inspect instance instruct instruction insurance int integer intend interest internal international interval introduce invalid invent
invest invite invoice issue item january february march april june july august september october november december join judge jump keyword key kid
kill king kitchen knowledge label lack lady lake land language lang later latest law lead leader league learn leg legal length lesson letter level library
license lie life lift light limit limited line link list listed listen literal live load local locate location lock log logic lookup loose
lose loss love lower luck lunch machine magazine mail major male female man manage manager manner manual map mark market married match material
matter maximum max meal measure media medical medium meet meeting member memory mention menu merge message metal meter method middle
mile military milk million min minimum minor minute miss missing mistake mix mode model modern modify moment monday tuesday wednesday thursday friday
saturday sunday money month morning mother motion motor mount mountain mouth move movie multiple multiply museum music name named names nation
national native natural nature navigate need negative neighbor nest net network neutral night noise north note notes notice null number numeric
object observe obtain obvious occur offer office officer official offset ok older omit operate operation operator opinion opportunity optimal option order
ordinary organization origin original outer output outside overall owner pack page paid pain paint pair panel paper parent parenthesis parentheses park part
partner party pass passage past path pattern pause pay payment peace pending percent percentage perfect perform period permanent permit person
personal phase phone photo phrase physical pick picture piece pipe plan plane plant platform play player please pocket poem police policy political
pool poor popular population port position positive possess post pound power practice precise prefer prefix prepare presence present president press
pressure pretty prevent price primary print prior private prize problem procedure proceed process produce product profession professor profile profit
program project promise proper property propose protect protein prove provide public publish pull purchase purple purpose push quality quantity quarter
query queries question quickly quiet quit quote quotes quotation race radio rail rain raise random range rank rapid rare rate ratio raw reach react
read ready real reality realize receive recent recheck recommend record records recover recount red reduce refer reference reflect refuse region register regular
reject relate relation relative release relevant rely remain remark remember remind remote remove rename repair repeat repeated replace reply report represent
request require required reserve reset resident resolve resource respect respond response rest restaurant result results retry return returned reveal reverse
review rewrite rich ride ring rise risk river road role roll room root rough round route row rows rule safe salary sale sales sample save scale
scan scene schedule schema school science score screen script sea search season seat secret section secure seek segment select selection
sell send senior sense sentence separate sequence series serious serve server service session set setting settle share sharp shell ship shop short shoulder
shout side sign signal silver sing sister sit site situation size skill skip sleep slow smart smooth snow social soft software solid solution solve song sort
sound source south space spaces speak special species specific specify speech speed spell spend split sport spot spring square staff stage stand standard
star start state statement station status stay steady steel step stick stock store stored story straight strange strategy stream street strength
stress strict strike string strong structure student study style subject submit subquery subset substr success sudden suffer suffix sugar
suggest suit sum summary summer sun supply support suppose surface surprise survey switch symbol symptom syntax system tab table tables tail talk
target task tax teach teacher team technical technology teen telephone television temperature temporary tend term test text theory therefore thick thin thorough
thought threat throw ticket tie tight timestamp tiny tip title tone tool tools topic total touch tour town track trade traffic trail
train transaction transfer transform translate travel treat tree trial trick trigger trim trip trouble truck truncate truncated trust truth tuple turns
typical unable union unique unit unite university unknown unnecessary unusual update updated upper urban usage use used useful user utility
valid validate value values vary varchar vehicle venue verify verified version video view village violate virtual visit visual voice volume vote wait walk wall
war warm warn warning wash waste watch water weak wear weather week weekly weight west wheel white wide width wife wild win wind window
winner winter wire wise woman women wonder wood world worry worth write written yard year yellow young zone
sql sqlite mysql select insert update delete from where group having order limit offset join inner outer left right cross natural using on as union
intersect values create alter drop table view index trigger primary foreign key references unique check default null not exists in between like glob
regexp is case when then end cast collate nocase asc desc distinct count sum avg min max total abs round length lower upper trim ltrim rtrim replace
substr instr coalesce ifnull nullif printf date time datetime julianday strftime pragma explain describe show columns fields full backtick backticks
aggregate aggregation statistic collect outcome drawn lost gate node pure mere mine tile tune fuse reuse pile mute sane memo demo led sold sent
spent held felt meant caught bought brought taught chosen driven fallen forgotten hidden spoken thrown worn beaten broken begun risen grown flown eaten
stolen woken guess guesses assumption careful carefully precisely concise brief briefly verbatim literal literally placeholder spelling punctuation
typo casing plural singular synonym duplicate dedupe enumerate paginate pagination iterate iterative sanity trailing surrounding embedded nested
ambiguous unambiguous mismatch inconsistent consistent correctness incorrect inaccurate accurate invalidate revalidate unexpected unfamiliar
apostrophe wildcard percent lowercase uppercase whitespace blanks unquoted quoted json yaml utf8 sqlite3 mysql8 ascii unicode regex backslash newline
`

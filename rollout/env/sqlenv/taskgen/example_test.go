package taskgen_test

import (
	"fmt"

	"harness-s/rollout/env/sqlenv/taskgen"
)

// What tasks look like, and what a naive agent would run. A change of these lines changes every task ever made with
// the seed: policies trained before it met other tasks.
func Example() {
	s, err := taskgen.New(taskgen.Options{Seed: 1})
	if err != nil {
		panic(err)
	}
	for i := range 8 {
		t := s.Make(taskgen.Train, i)
		fmt.Println(t.Question, t.Traps.Names(), t.Answers)
		fmt.Println(" ", t.SQL(taskgen.Style{}))
		fmt.Println(" ", t.Gold)
	}
	// Output:
	// List the new paves with power < 38. [opaque cut quote] [zogu reno paku pude tuku niti]
	//   SELECT name FROM new paves WHERE power < 38
	//   [SELECT name FROM `new paves` WHERE `ge5` < 38 SELECT name FROM `new paves` WHERE `ge5` < 38 LIMIT 5 OFFSET 5]
	// Add zodo to mudis with price 52 and score 60. [] [done]
	//   INSERT INTO mudis (name, price, score) VALUES ('zodo', 52, 60)
	//   [INSERT INTO `mudis` (name, `price`, `score`) VALUES ('zodo', 52, 60)]
	// What is the weight in guzes of the leader of sero in vetis? [opaque] [65]
	//   SELECT weight FROM guzes WHERE name = (SELECT leader FROM vetis WHERE name = 'sero')
	//   [SELECT `be9` FROM `guzes` WHERE name = (SELECT leader FROM `vetis` WHERE name = 'sero')]
	// Set the score of bela in kifes to 50. [] [done]
	//   UPDATE kifes SET score = 50 WHERE name = 'bela'
	//   [UPDATE `kifes` SET `score` = 50 WHERE name = 'bela']
	// Which bites has the smallest net weight? [quote] [gula]
	//   SELECT name FROM bites ORDER BY net weight ASC LIMIT 1
	//   [SELECT name FROM `bites` ORDER BY `net weight` ASC LIMIT 1]
	// List the toses with order < 68. [cut quote] [roti daka soro rude rumu bupi pumu zoge]
	//   SELECT name FROM toses WHERE order < 68
	//   [SELECT name FROM `toses` WHERE `order` < 68 SELECT name FROM `toses` WHERE `order` < 68 LIMIT 5 OFFSET 5]
	// Set the width of rife in fusus to 2. [dirty] [done]
	//   UPDATE fusus SET width = 2 WHERE name = 'rife'
	//   [UPDATE `fusus` SET `width` = 2 WHERE lower(trim(name)) = 'rife']
	// What is the power of raki in zomis? [opaque] [13]
	//   SELECT power FROM zomis WHERE name = 'raki'
	//   [SELECT `su3` FROM `zomis` WHERE name = 'raki']
}
